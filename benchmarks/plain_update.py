"""The code that padded batches and PrefixGrouper share: the loss in plain torch, AdamW, and the loop over
micro-batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from benchmarks.sides import LEARNING_RATE, MAX_GRAD_NORM, Terms, open_policy
from sleuth.learn.batch import Row

CLIP = 0.2


class PlainUpdate(ABC):
    """An update without statistics such as entropy or clip fraction. Beta is 0."""

    def __init__(self, terms: Terms, model: PreTrainedModel | None = None) -> None:
        if terms.beta:
            raise ValueError("this peer is measured without a KL term")
        self.terms = terms
        self.model: PreTrainedModel = open_policy(terms) if model is None else model
        self.head = cast(nn.Linear, self.model.get_output_embeddings())
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.0, fused=True
        )

    @abstractmethod
    def micro_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """The micro-batches of this peer's setting."""

    @abstractmethod
    def predictions(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states (M, width) that predict the M trained tokens, those tokens (M,), their advantages (M,)."""

    def play(self, batches: Sequence[Sequence[Row]]) -> list[float]:
        """The seconds of one update for each batch."""
        return [self._update(rows) for rows in batches]

    def gradients(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The gradient of one update, without changing the weights."""
        self._backward(rows)
        return {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}

    def _update(self, rows: Sequence[Row]) -> float:
        started = time.perf_counter()
        self._backward(rows)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return time.perf_counter() - started

    def _backward(self, rows: Sequence[Row]) -> None:
        total = sum(sum(row.trained) for row in rows)
        for micro in self.micro_batches(rows):
            hidden, targets, advantages = self.predictions(micro)
            logprobs = -cross_entropy(self.head(hidden), targets, reduction="none")
            (clipped_loss(logprobs, advantages).sum() / total).backward()


def clipped_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """PPO's loss per token, with the log-probabilities of the same pass as old ones."""
    ratio = (logprobs - logprobs.detach()).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
