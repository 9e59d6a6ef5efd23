from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from sleuth.evaluation.significance import kendall_tau_b


def by_every_pair(one: list[float], other: list[float]) -> float:
    """The definition, pair by pair."""
    signs = [
        ((a > b) - (a < b), (c > d) - (c < d)) for (a, c), (b, d) in combinations(list(zip(one, other, strict=True)), 2)
    ]
    apart = math.prod(sum(sign[side] != 0 for sign in signs) for side in (0, 1))
    return sum(a * b for a, b in signs) / math.sqrt(apart)


def test_the_same_order_is_1_the_opposite_one_is_minus_1_and_one_of_three_pairs_counts_a_third() -> None:
    assert kendall_tau_b([1, 2, 3], [0.1, 5, 70]) == 1
    assert kendall_tau_b([1, 2, 3], [3, 2, 1]) == -1
    assert kendall_tau_b([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)


def test_ties_of_one_score_alone_cost_some_agreement() -> None:
    assert kendall_tau_b([0, 0, 1, 1], [0, 0, 1, 1]) == 1
    assert kendall_tau_b([0, 0, 1], [0, 1, 2]) == pytest.approx(2 / math.sqrt(2 * 3))


def test_a_score_that_tells_nothing_apart_has_no_order_to_agree_with() -> None:
    assert kendall_tau_b([1, 1, 1], [1, 2, 3]) is None
    assert kendall_tau_b([1], [1]) is None
    assert kendall_tau_b([], []) is None


def test_it_is_what_the_definition_says_for_any_ties() -> None:
    rng = random.Random(0)
    for _ in range(50):
        one, other = ([float(rng.randrange(5)) for _ in range(30)] for _ in range(2))
        assert kendall_tau_b(one, other) == pytest.approx(by_every_pair(one, other))
