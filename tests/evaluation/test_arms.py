from __future__ import annotations

import math

import numpy as np
import pytest

from sleuth.evaluation.intervals import UNMEASURED, Measured, bootstrap_mean, wilson
from sleuth.evaluation.significance import difference, level


def test_one_run_has_the_intervals_of_its_questions() -> None:
    assert level([[1.0, 0.0, None, 1.0]], is_share=True) == wilson(2, 3)
    assert level([[1.0, 2.0, None, 3.0]], is_share=False) == bootstrap_mean([1.0, 2.0, 3.0])
    assert level([[None]], is_share=True) == level([[None], [None]], is_share=True) == UNMEASURED


def test_outcomes_of_zero_and_one_are_tested_with_mcnemar_and_others_with_sign_flips() -> None:
    ours, theirs = [1.0] * 9 + [0.0] + [1.0] * 5, [0.0] * 9 + [1.0] + [1.0] * 5
    found = difference([ours], [theirs], is_share=True)
    assert found is not None
    assert (found.test, found.p, found.measured.value, found.measured.n) == ("mcnemar", 22 / 1024, 8 / 15, 15)
    found = difference([[3.0, 4.0, 5.0]], [[1.0, 1.0, 1.0]], is_share=False)
    assert found is not None
    assert (found.test, found.p, found.measured.value) == ("sign_flip", 2 / 8, 3.0)


def test_a_question_that_one_run_lacks_is_left_out_for_all() -> None:
    found = difference([[1.0, None, 1.0]], [[0.0, 0.0, None]], is_share=True)
    assert found is not None
    assert (found.measured.value, found.measured.n) == (1.0, 1)
    assert difference([[1.0, None]], [[None, 1.0]], is_share=True) is None
    assert level([[1.0, 1.0], [None, 0.0]], is_share=True).value == 0.5


def test_runs_and_questions_are_two_crossed_samples() -> None:
    # Two runs, two questions: 0.2 0.4 / 0.6 1.0, mean 0.55. Means of runs 0.3 and 0.8: variance 0.125, of their mean
    # 0.0625. Means of questions 0.4 and 0.7: variance 0.045, of their mean 0.0225. Rest +-0.05: sum of squares 0.01,
    # one degree of freedom, over four cells 0.0025. Together 0.0625 + 0.0225 - 0.0025 = 0.0825.
    # Freedom 0.0825^2 / (0.0625^2 + 0.0225^2) = 1.5425; its bound is 5.79, from the incomplete beta function.
    measured = level([[0.2, 0.4], [0.6, 1.0]], is_share=False)
    assert (measured.value, measured.n) == (pytest.approx(0.55), 2)
    assert measured.high == pytest.approx(0.55 + 5.79 * math.sqrt(0.0825), rel=1e-3)
    assert measured.low == 0.0  # no figure is negative


def test_runs_that_agree_are_not_taken_for_more_questions() -> None:
    run = [1.0, 0.0] * 20
    one, three = level([run], is_share=True), level([run, run, run], is_share=True)
    assert one.n == three.n == 40
    assert three.low == pytest.approx(one.low, abs=0.02)
    assert three.high == pytest.approx(one.high, abs=0.02)


def test_a_paired_difference_forgets_how_hard_the_questions_are() -> None:
    hard = np.linspace(0, 1, 30)
    theirs = [list(hard), list(hard + 0.01)]
    ours = [list(hard + 0.2), list(hard + 0.21)]
    found = difference(ours, theirs, is_share=False)
    assert found is not None
    assert found.test == "student"
    assert found.measured.value == pytest.approx(0.2)
    # Each arm's runs differ by 0.01: variance 5e-5, of the mean 2.5e-5, twice; freedom 2, bound 4.303.
    assert found.measured.high == pytest.approx(0.2 + 4.303 * math.sqrt(5e-5), rel=1e-3)
    assert found.p < 0.01


def test_differences_of_shares_stay_possible() -> None:
    found = difference([[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], is_share=True)
    assert found is not None
    assert (found.measured.low, found.measured.high) == (-1.0, 1.0)
    assert level([[1.0] * 10, [1.0] * 10], is_share=True) == wilson(10, 10)


def covered(measured: Measured, truth: float) -> bool:
    assert measured.low is not None
    assert measured.high is not None
    return measured.low <= truth <= measured.high


def test_the_paired_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    """200 worlds of 60 questions: hits 0.4 and 0.6 that share their questions' luck. 95 % +- 4.5 (three standard
    errors), and a point for the percentile method."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(200):
        luck, own = rng.random((2, 60)), rng.random(60) < 0.5
        theirs = (luck[0] < 0.4).astype(float)
        ours = np.where(own, luck[0] < 0.6, luck[1] < 0.6).astype(float)
        found = difference([list(ours)], [list(theirs)], is_share=True)
        assert found is not None
        hits.append(covered(found.measured, 0.2))
    assert 0.895 <= np.mean(hits) <= 0.995


@pytest.mark.parametrize("between_runs", [0.0, 0.05, 0.2])
def test_intervals_over_runs_cover_the_truth_as_often_as_they_say(between_runs: float) -> None:
    """300 worlds of three runs an arm and 40 questions; runs that hardly differ, somewhat, and a lot. 95 % +- 4 (three
    standard errors); more than that is allowed, because an interval that never claims too much is the promise."""
    rng = np.random.default_rng(2)

    def arm(mean: float, questions: np.ndarray) -> list[list[float]]:
        runs = rng.normal(scale=between_runs, size=(3, 1))
        return (mean + runs + questions + rng.normal(scale=0.3, size=(3, 40))).tolist()

    hits = []
    for _ in range(300):
        questions = rng.normal(scale=0.5, size=40)
        found = difference(arm(5.1, questions), arm(5.0, questions), is_share=False)
        assert found is not None
        hits.append(covered(found.measured, 0.1))
    assert np.mean(hits) >= 0.91
    assert between_runs == 0 or np.mean(hits) <= 0.995


def test_a_seed_that_is_left_out_of_the_interval_would_have_claimed_too_much() -> None:
    """The same worlds with runs that differ: the questions' interval of one run each misses the truth most of the
    time, which is why it says whose interval it is."""
    rng = np.random.default_rng(3)
    hits = []
    for _ in range(100):
        one, other = (5 + rng.normal(scale=0.2) + rng.normal(scale=0.3, size=(1, 40)) for _ in range(2))
        found = difference(one.tolist(), other.tolist(), is_share=False)
        assert found is not None
        hits.append(covered(found.measured, 0.0))
    assert np.mean(hits) < 0.7


def test_a_level_may_be_negative_where_its_values_are() -> None:
    measured = level([[-0.2, 0.3, 0.1], [-0.1, 0.2, 0.2]], is_share=False)
    assert measured.low is not None
    assert measured.low < 0
