"""The interface of ours and every peer, so that all are timed and compared by the same code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.learn.batch import Row

LEARNING_RATE = 1e-6
MAX_GRAD_NORM = 1.0
"""AdamW without weight decay, constant learning rate, gradients clipped: the same for all sides."""

AWAY = 0.005
"""The standard deviation of the noise between a policy and its reference; that of the weights is 0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The arguments of a side. `model` is a folder. `setting` is ours a token budget, for padded batches and TRL the
    rows of a micro-batch, for PrefixGrouper its groups. `beta` weighs the KL (k3) to a frozen copy of the model. An
    update has `rows` rows in groups of `siblings`. `recompute` is gradient checkpointing, for ours and TRL, where it is
    on by default. `teacher`, of ours alone: a frozen copy of the model that every row follows on its "sampled" tokens,
    or on its own "likeliest"."""

    model: Path
    setting: int
    rows: int
    siblings: int
    beta: float = 0.0
    recompute: bool = False
    teacher: Literal["sampled", "likeliest"] | None = None


class Side(Protocol):
    """A model with its optimiser, ready to update."""

    def play(self, batches: Sequence[Sequence[Row]]) -> list[float]:
        """The seconds of one update for each batch, from rows to stepped weights."""
        ...

    def gradients(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The gradient of one update by parameter name, unclipped."""
        ...


SIDES = {
    "ours": ("benchmarks.ours", "Ours"),
    "padded": ("benchmarks.padded_peer", "Padded"),
    "prefix_grouper": ("benchmarks.prefix_grouper_peer", "Grouped"),
    "trl": ("benchmarks.trl_peer", "Trl"),
}


def open_side(name: str, terms: Terms) -> Side:
    """A side by its name. Its libraries are imported only here, so that a process loads those of one side."""
    module, kind = SIDES[name]
    return getattr(import_module(module), kind)(terms)


def open_policy(terms: Terms) -> PreTrainedModel:
    """The trained model. Noise separates it from a reference or teacher, or a KL would have no gradient."""
    model = AutoModelForCausalLM.from_pretrained(terms.model)
    if terms.beta or terms.teacher:
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight), alpha=AWAY)
    return model


def relative_error(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The norm of the difference of two gradients over that of the second, all parameters as one vector."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"gradients of different parameters: {sorted(ours.keys() ^ theirs.keys())}")
    distance = sum(float((ours[name] - theirs[name]).double().square().sum()) for name in theirs)
    length = sum(float(gradient.double().square().sum()) for gradient in theirs.values())
    return (distance / length) ** 0.5
