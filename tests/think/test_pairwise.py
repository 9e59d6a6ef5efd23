from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.think.tournament import BothOrders
from sleuth.types import Pair, Verdict

PAIR = Pair(question="Where?", first="In Tarn.", second="In Ulm.")


class Says:
    """A score for each order: (as given, exchanged)."""

    def __init__(self, *scores: float | None) -> None:
        self.scores = scores
        self.asked: list[Pair] = []

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=score, reason=f"said {score}") for score in self.scores]


def both(*scores: float | None) -> Verdict:
    judge = Says(*scores)
    [verdict] = asyncio.run(BothOrders(judge).compare([PAIR]))
    assert judge.asked == [PAIR, PAIR.swapped]
    return verdict


@pytest.mark.parametrize(
    ("given", "exchanged", "score"),
    [(1, 0, 1), (0, 1, 0), (0.5, 0.5, 0.5), (1, 1, 0.5), (0, 0, 0.5), (1, 0.5, 0.5), (0.5, 1, 0.5), (0.9, 0.2, 1)],
)
def test_one_is_better_where_both_orders_say_so_and_else_it_is_a_tie(
    given: float, exchanged: float, score: float
) -> None:
    assert both(given, exchanged).score == score


def test_orders_that_disagree_are_told() -> None:
    assert both(1, 1).reason == "as given: the first is better; exchanged: the second is better"


@pytest.mark.parametrize("scores", [(None, 0.0), (1.0, None), (None, None)])
def test_a_failure_in_one_order_is_a_missing_verdict_and_no_tie(scores: Sequence[float | None]) -> None:
    assert both(*scores).score is None


def test_an_invalid_verdict_stays_invalid() -> None:
    class Garbled:
        async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [Verdict(score=1.0), Verdict(score=None, invalid=True, reason="prose")]

    [verdict] = asyncio.run(BothOrders(Garbled()).compare([PAIR]))
    assert (verdict.score, verdict.invalid, verdict.reason) == (None, True, "exchanged: prose")
