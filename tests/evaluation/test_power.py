"""How many draws a difference would need."""

from __future__ import annotations

import random

import pytest

from sleuth.evaluation.intervals import paired_bootstrap
from sleuth.evaluation.significance import clusters_for_difference, draws_for_shares


def test_two_shares_that_a_published_table_could_not_tell_apart() -> None:
    assert draws_for_shares(0.09, 0.10) == draws_for_shares(0.10, 0.09) == 13_495
    assert draws_for_shares(0.1, 0.5) < 25
    with pytest.raises(ValueError, match="are equal"):
        draws_for_shares(0.1, 0.1)


def test_clusters_by_hand() -> None:
    # differences 1 and 3: mean 2, standard deviation sqrt(2); ((1.95996 + 0.84162) sqrt(2) / 2)^2 = 3.92
    assert clusters_for_difference([1.0, 3.0]) == 4
    assert clusters_for_difference([1.0, 1.0, 3.0, 3.0], ["a", "a", "b", "b"]) == 4
    assert clusters_for_difference([1.0, None], ["a", "b"]) is None
    assert clusters_for_difference([1.0, -1.0]) is None
    assert clusters_for_difference([2.0, 2.0]) == 2


def test_so_many_clusters_find_the_difference_in_four_of_five_cases() -> None:
    draw = random.Random(0)
    pilot = [draw.gauss(0.3, 1.0) for _ in range(20_000)]
    needed = clusters_for_difference(pilot)
    assert needed is not None
    found = 0
    for _ in range(100):
        ours = [draw.gauss(0.3, 1.0) for _ in range(needed)]
        found += (paired_bootstrap(ours, [0.0] * needed).low or 0) > 0
    assert 70 <= found <= 92
