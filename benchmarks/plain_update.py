"""What padded batches and PrefixGrouper share: the loss in plain torch, AdamW, and the loop over micro-batches."""

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
    """An update without statistics: no entropy, no clip fraction, nothing but what steps the weights. Beta is 0."""

    def __init__(self, terms: Terms) -> None:
        if terms.beta:
            raise ValueError("this peer is measured without a KL term")
        self.terms = terms
        self.model: PreTrainedModel = open_policy(terms)
        self.head = cast(nn.Linear, self.model.get_output_embeddings())
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.0, fused=True
        )

    @abstractmethod
    def micro_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """The rows cut as this peer's setting says."""

    @abstractmethod
    def predictions(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states (M, width) that predict the M trained tokens, those tokens (M,), their advantages (M,)."""

    def play(self, batches: Sequence[Sequence[Row]]) -> list[float]:
        """One update a batch; the seconds of each."""
        return [self._update(rows) for rows in batches]

    def gradients(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The gradient of one update; the weights stay as they are."""
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
    """PPO's loss a token, the old log-probabilities being those of the same pass."""
    ratio = (logprobs - logprobs.detach()).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
