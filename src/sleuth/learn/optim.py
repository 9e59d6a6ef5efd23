"""The optimiser of a policy: AdamW, or Muon for the hidden matrices with AdamW for the rest, under one schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

OptimiserName = Literal["adamw", "muon"]
ParameterRole = Literal["matrix", "head", "embedding", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """How weights are stepped. `steps` is the schedule's horizon, `warmup_steps` of them rise linearly from zero.

    `weight_decay` is decoupled and spares embeddings, norms and biases. Gradients longer than `max_grad_norm` (global
    2-norm) are scaled down to it. Without `master_weights`, weights of 16 bits are stepped themselves.
    `Optimisation(steps=200, learning_rate=1e-6, warmup_steps=10)`.
    """

    steps: int
    learning_rate: float
    name: OptimiserName = "adamw"
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    master_weights: bool = True


def scheduled_learning_rate(step: int, settings: Optimisation) -> float:
    """The learning rate of step `step` (0 is the first): a linear warm-up, then constant, or a half cosine to zero."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.learning_rate * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def parameter_roles(model: PreTrainedModel) -> dict[str, ParameterRole]:
    """What each parameter is to an optimiser: a hidden matrix, the output head, an embedding, or a vector (norms and
    biases). A head tied to the embedding is the embedding."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = id(cast(nn.Linear, model.get_output_embeddings()).weight)

    def role(parameter: nn.Parameter) -> ParameterRole:
        if id(parameter) in embeddings:
            return "embedding"
        if id(parameter) == head:
            return "head"
        return "vector" if parameter.dim() < 2 else "matrix"

    return {name: role(parameter) for name, parameter in model.named_parameters()}


class Optimiser:
    """One or two torch optimisers stepped together, with the learning rate of the schedule.

    `weights` maps parameter names of `model` to the fp32 tensors that are stepped (`MasterWeights.tensors`).

    Muon (arXiv:2502.16982) steps the 2-D hidden matrices; its update is scaled to the size of AdamW's, so that one
    learning rate and one weight decay serve both.
    """

    def __init__(self, model: PreTrainedModel, weights: Mapping[str, Tensor], settings: Optimisation) -> None:
        self.settings = settings
        self.steps = 0
        roles = parameter_roles(model)
        by_muon = {
            name for name in weights if settings.name == "muon" and _is_hidden_matrix(roles[name], weights[name])
        }
        adamw = {name: tensor for name, tensor in weights.items() if name not in by_muon}
        decayed = [tensor for name, tensor in adamw.items() if roles[name] in ("matrix", "head")]
        spared = [tensor for name, tensor in adamw.items() if roles[name] in ("embedding", "vector")]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": spared, "weight_decay": 0.0}]
        self.parts: dict[str, torch.optim.Optimizer] = {
            "adamw": torch.optim.AdamW([group for group in groups if group["params"]], betas=settings.betas)
        }
        if by_muon:
            self.parts["muon"] = torch.optim.Muon(
                [weights[name] for name in weights if name in by_muon],
                weight_decay=settings.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return scheduled_learning_rate(self.steps, self.settings)

    @property
    def stepped(self) -> dict[str, list[Tensor]]:
        """The tensors of each part, in the order in which its state numbers them."""
        return {
            name: [tensor for group in part.param_groups for tensor in group["params"]]
            for name, part in self.parts.items()
        }

    def step(self) -> None:
        """Step every weight that has a gradient."""
        for part in self.parts.values():
            for group in part.param_groups:
                group["lr"] = self.learning_rate
            part.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Steps made and the moments; tensors are the live ones."""
        return {"steps": self.steps, "parts": {name: part.state_dict() for name, part in self.parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.steps = state["steps"]


def _is_hidden_matrix(role: ParameterRole, weight: Tensor) -> bool:
    return role == "matrix" and weight.dim() == 2
