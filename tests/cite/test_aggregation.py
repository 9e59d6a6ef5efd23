"""The three ways of making one number of many verdicts, computed by hand."""

from __future__ import annotations

import pytest

from sleuth.cite.rubric_reward import (
    AGGREGATIONS,
    Graded,
    absence_score,
    absolute_weights,
    mean_flipped,
    positive_weights,
)

PERFECT: Graded = [(True, 1.0), (False, 0.0)]
MIXED: Graded = [(True, 1.0), (True, 0.5), (False, 0.5), (False, 0.0)]


def test_a_perfect_answer_is_worth_1_in_two_ways_and_half_of_that_in_the_third() -> None:
    assert [aggregate(PERFECT, True) for aggregate in AGGREGATIONS.values()] == [1.0, 1.0, 0.5]


def test_every_way_by_hand() -> None:
    assert mean_flipped(MIXED, True) == (1 + 0.5 + 0.5 + 1) / 4
    assert positive_weights(MIXED, True) == (1 + 0.5 - 0.5 - 0) / 2
    assert absolute_weights(MIXED, True) == (1 + 0.5 - 0.5 - 0) / 4


def test_only_the_mean_of_what_is_flipped_stays_above_0() -> None:
    bad: Graded = [(True, 0.0), (False, 1.0), (False, 1.0)]
    assert (mean_flipped(bad, True), positive_weights(bad, True)) == (0.0, -2.0)
    assert absolute_weights(bad, True) == pytest.approx(-2 / 3)
    assert positive_weights([(False, 1.0)], True) == -1.0  # no positive weight: over 1


def test_what_does_not_answer_is_not_paid_for_the_faults_it_lacks() -> None:
    silent: Graded = [(True, 0.0), (False, 0.0), (False, 0.0)]
    assert (mean_flipped(silent, True), mean_flipped(silent, False)) == (pytest.approx(2 / 3), 0.0)
    assert positive_weights(silent, False) == absolute_weights(silent, False) == 0.0
    assert mean_flipped([(True, 0.5), (False, 0.0)], False) == 0.25  # what is wanted counts all the same


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("name", list(AGGREGATIONS))
@pytest.mark.parametrize("answers", [True, False])
def test_a_missing_verdict_stays_missing_whether_it_is_flipped_or_not(name: str, wanted: bool, answers: bool) -> None:
    assert AGGREGATIONS[name]([(True, 1.0), (wanted, None)], answers) is None
    assert absence_score(None, answers) is None
