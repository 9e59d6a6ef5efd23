"""How likely a model holds given rows, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.prefix_tree import pack


@torch.no_grad()
def row_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], *, budget: int, temperature: float = 1.0
) -> list[list[float]]:
    """The natural-log probability of each trained token of each row given those before it; 0.0 where none is trained.

    In passes over at most `budget` distinct tokens: what rows share at their beginning is computed once. No gradient.
    """
    if not any(any(row.trained[1:]) for row in rows):
        return [[0.0] * len(row.tokens) for row in rows]
    found: dict[int, list[float]] = {}
    for part in pack(collate(rows), budget):
        values, _ = token_logprobs(model, part.to(model.device), temperature=temperature)
        for row, logprobs in zip(part.members, values.tolist(), strict=True):
            found[row] = logprobs[: len(rows[row].tokens)]
    return [found[row] for row in range(len(rows))]
