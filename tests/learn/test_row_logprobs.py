"""How likely a model holds given rows."""

from __future__ import annotations

import pytest
import torch

from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs


@torch.no_grad()
def slow(model, row: Row) -> list[float]:
    """Row by row from the model's own full logits."""
    logprobs = model(torch.tensor([row.tokens])).logits[0].float().log_softmax(dim=-1)
    return [
        float(logprobs[at - 1, token]) if trained and at else 0.0
        for at, (token, trained) in enumerate(zip(row.tokens, row.trained, strict=True))
    ]


@pytest.mark.parametrize("budget", [1, 24, 10_000])
def test_results_have_the_order_of_the_rows(make_model, make_rows, budget) -> None:
    model, rows = make_model(), make_rows(rows=9, seed=3)
    found = row_logprobs(model, rows, budget=budget)
    assert len(found) == len(rows)
    for row, logprobs in zip(rows, found, strict=True):
        assert logprobs == pytest.approx(slow(model, row), abs=1e-5)  # fp32, other orders of summation


def test_rows_without_trained_tokens_are_zeros(make_model) -> None:
    rows = [Row(tokens=(3, 4, 5), trained=(False, False, False)), Row(tokens=(3,), trained=(True,))]
    assert row_logprobs(make_model(), rows, budget=8) == [[0.0, 0.0, 0.0], [0.0]]
