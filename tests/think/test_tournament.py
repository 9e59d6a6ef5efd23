"""A tournament beside the full round robin, under a judge whose verdicts are flipped now and then."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from benchmarks.tournament import Flipping, ranks, shuffled
from sleuth.think.comparisons import Extremes, Standings, find_extremes, rounds_of

POOL = 17


class OftenSilent(Flipping):
    """Says nothing of a share of the pairs."""

    def score(self, one: int, other: int) -> float | None:
        silent = random.Random(f"silent {min(one, other)} {max(one, other)}").random() < self.share
        return None if silent else float(one > other)


def extremes(judge: Flipping, pool: list[int], seed: int = 0) -> Extremes:
    return asyncio.run(find_extremes(judge, "", [*map(str, pool)], seed=seed))


@pytest.mark.parametrize("flipped", [0.0, 0.05, 0.15])
def test_best_and_worst_of_17_are_as_good_as_the_full_round_robins_with_a_third_of_its_calls(flipped: float) -> None:
    table = np.array([[*ranks(POOL, flipped, seed)] for seed in range(200)])
    best, worst, full_best, full_worst, compared = table.mean(axis=0)
    assert best <= full_best + 0.5
    assert worst <= full_worst + 0.5
    assert compared <= POOL * (POOL - 1) / 2 / 3


def test_no_pair_is_asked_twice_and_neither_place_is_given_to_one_side() -> None:
    firsts = []
    for seed in range(20):
        judge = Flipping(0.1, seed)
        extremes(judge, shuffled(POOL, seed), seed)
        assert len({frozenset((pair.first, pair.second)) for pair in judge.asked}) == len(judge.asked)
        firsts += [int(pair.first) > int(pair.second) for pair in judge.asked]
    assert 0.42 < np.mean(firsts) < 0.58  # five standard errors of 900 draws


def test_the_same_seed_is_the_same_tournament() -> None:
    one, other = Flipping(0.1, 3), Flipping(0.1, 3)
    assert extremes(one, shuffled(POOL, 3), seed=5) == extremes(other, shuffled(POOL, 3), seed=5)
    assert one.asked == other.asked


@pytest.mark.parametrize("size", [4, 5, 8, 16, 33])
def test_other_pools_are_found_out_in_k_log_k_comparisons(size: int) -> None:
    table = np.array([[*ranks(size, 0.0, seed)] for seed in range(20)])
    best, worst, _, _, compared = table.mean(axis=0)
    assert max(best, worst) <= 0.5
    assert compared == rounds_of(size) * ((size + 1) // 2) <= size * np.log2(size)


def test_a_pool_of_one_needs_no_judge_and_says_nothing() -> None:
    found = extremes(Flipping(0, 0), [7])
    assert (found.best, found.worst, found.compared) == (None, None, 0)


def test_missing_verdicts_are_counted_and_say_nothing() -> None:
    judge, pool = OftenSilent(0.2, 1), shuffled(POOL, 1)
    found = extremes(judge, pool, seed=1)
    assert found.best is not None
    assert found.worst is not None
    assert pool[found.best] >= POOL - 3
    assert pool[found.worst] <= 2
    assert found.missing == sum(judge.score(int(pair.first), int(pair.second)) is None for pair in judge.asked) > 0


def test_where_the_judge_is_down_there_is_no_best_and_no_worst() -> None:
    found = extremes(OftenSilent(1.0, 1), shuffled(POOL, 1))
    assert (found.best, found.worst, found.missing) == (None, None, found.compared)


def test_ties_are_evidence_of_equal_strength() -> None:
    standings = Standings(3)
    standings.enter(0, 1, 0.5)
    standings.enter(1, 2, 1.0)
    zero, one, two = standings.extremes().strengths
    assert one > zero > two
    assert zero + one + two == pytest.approx(0)
