"""Our update: `Policy.update` on collated rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.sides import LEARNING_RATE, MAX_GRAD_NORM, Terms, open_policy
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.models import fit_threads
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, Update

BUDGET = 4_096
"""Tokens of a micro-batch: the default of a recipe."""
LIKELIEST = 8
"""Tokens of a teacher that the policy follows, where it follows those."""


class Ours:
    """Sleuth's learner. `last` has the statistics of its last update."""

    def __init__(self, terms: Terms) -> None:
        optimisation = Optimisation(steps=100, learning_rate=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM)
        model = open_policy(terms)
        fit_threads(model)
        self.policy = Policy(
            model,
            optimisation,
            _frozen(terms.model) if terms.beta else None,
            teacher=_frozen(terms.model) if terms.teacher else None,
            teacher_top_k=LIKELIEST if terms.teacher == "likeliest" else None,
            gradient_checkpointing=terms.recompute,
        )
        self.guidance = float(terms.teacher is not None)
        self.loss = PolicyLoss(beta=terms.beta)
        self.budget = terms.setting
        self.last: Update | None = None

    def play(self, batches: Sequence[Sequence[Row]]) -> list[float]:
        """The seconds of one update for each batch."""
        return [self._update(rows) for rows in batches]

    def gradients(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The gradient of one update, without changing the weights."""
        kept: dict[str, Tensor] = {}

        def keep(*, ends_step: bool) -> int:
            gradients = {name: weight.grad for name, weight in self.policy.masters.tensors.items()}
            kept.update({name: gradient.clone() for name, gradient in gradients.items() if gradient is not None})
            return 0

        self.policy.max_grad_norm = math.inf
        self.policy.optimiser.step = keep
        self._update(rows)
        return kept

    def _update(self, rows: Sequence[Row]) -> float:
        rows = [replace(row, guidance=self.guidance) for row in rows]
        started = time.perf_counter()
        self.last = self.policy.update(collate(rows), self.loss, budget=self.budget)
        return time.perf_counter() - started


def _frozen(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
