"""Levels, differences, p-values, sample sizes and rank correlation, beside closed forms, tables and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sleuth.evaluation.intervals import UNMEASURED, Measured, bootstrap_mean, wilson
from sleuth.evaluation.significance import (
    Difference,
    Runs,
    difference,
    kendall_tau_b,
    level,
    mcnemar,
    sign_flip,
    student_bound,
    student_p,
)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    # Twice the binomial tail of the smaller count: 2 (1 + 10) / 2^10, 2 / 2^5, 2 (1 + 12 + 66) / 2^12.
    [(9, 1, 22 / 1024), (0, 5, 2 / 32), (10, 2, 158 / 4096), (3, 3, 1.0), (0, 0, 1.0), (1, 0, 1.0)],
)
def test_mcnemar_is_the_exact_binomial_test_of_the_pairs_that_disagree(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == mcnemar(lost, gained) == p


def test_mcnemar_works_for_thousands_of_questions() -> None:
    assert 0 <= mcnemar(3000, 1000) < 1e-200
    assert mcnemar(2000, 2010) == pytest.approx(0.887, abs=0.001)  # normal with continuity: 2 (1 - Phi(9 / sqrt(4010)))


def test_sign_flips_of_few_differences_are_counted_one_by_one() -> None:
    assert sign_flip([1.0, 1.0, 1.0]) == 2 / 8
    assert sign_flip([3.0, 1.0]) == 2 / 4  # sums 4, 2, -2, -4
    assert sign_flip([3.0, -1.0]) == 4 / 4
    assert sign_flip([]) == sign_flip([0.0, 0.0]) == 1.0


def test_sign_flips_of_equal_sizes_are_mcnemars_test() -> None:
    assert sign_flip([0.5] * 9 + [-0.5]) == mcnemar(9, 1)
    drawn = sign_flip([1.0] * 40 + [-1.0] * 20)
    assert drawn == pytest.approx(mcnemar(40, 20), abs=0.006)  # 0.0135; four standard errors of 10,000 draws


def test_sign_flips_that_are_drawn_are_never_impossible_and_the_same_each_time() -> None:
    assert sign_flip([1.0] * 100) == 1 / 10_001
    values = [math.sin(i) + 0.1 for i in range(50)]
    assert sign_flip(values) == sign_flip(values)


@pytest.mark.parametrize(
    ("freedom", "bound"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042), (2.5, 3.57465), (1e9, 1.960)]
)
def test_students_bound_is_the_tables(freedom: float, bound: float) -> None:
    assert student_bound(freedom) == pytest.approx(bound, rel=3e-4)
    assert student_p(bound, freedom) == pytest.approx(0.05, rel=1e-3)


def test_students_p_is_known_in_closed_form() -> None:
    assert student_p(0.0, 3) == 1.0
    assert student_p(1.0, 1) == pytest.approx(0.5)  # 1 - 2/pi atan(1)
    assert student_p(-2.0, 2) == pytest.approx(1 - 2 / math.sqrt(6), rel=1e-5)  # 1 - t / sqrt(2 + t^2)


def test_one_run_has_the_intervals_of_its_questions() -> None:
    assert level([[1.0, 0.0, None, 1.0]], is_share=True) == wilson(2, 3)
    assert level([[1.0, 2.0, None, 3.0]], is_share=False) == bootstrap_mean([1.0, 2.0, 3.0])
    assert level([[None]], is_share=True) == level([[None], [None]], is_share=True) == UNMEASURED


def test_outcomes_of_zero_and_one_are_tested_with_mcnemar_and_others_with_sign_flips() -> None:
    ours, theirs = [1.0] * 9 + [0.0] + [1.0] * 5, [0.0] * 9 + [1.0] + [1.0] * 5
    found = compared([ours], [theirs], is_share=True)
    assert (found.test, found.p, found.measured.value, found.measured.n) == ("mcnemar", 22 / 1024, 8 / 15, 15)
    found = compared([[3.0, 4.0, 5.0]], [[1.0, 1.0, 1.0]], is_share=False)
    assert (found.test, found.p, found.measured.value) == ("sign_flip", 2 / 8, 3.0)


def test_a_question_that_one_run_lacks_is_left_out_for_all() -> None:
    found = compared([[1.0, None, 1.0]], [[0.0, 0.0, None]], is_share=True)
    assert (found.measured.value, found.measured.n) == (1.0, 1)
    assert difference(([[1.0, None]], [[None, 1.0]]), is_share=True) is None
    assert level([[1.0, 1.0], [None, 0.0]], is_share=True).value == 0.5


def test_a_mean_over_sets_weighs_each_set_alike_and_resamples_within_it() -> None:
    # One set gains 0 and 1, another 1, 0, 0 and 0: 0.5 and 0.25, mean 0.375. A resample of the first is 0, 0.5 or 1
    # with 1/4, 1/2, 1/4, one of the second k/4 with binomial odds of 1/4. Their mean is 0 with 0.079, above 0.75 with
    # 0.013 and at least 0.75 with 0.067: the 2.5 % quantiles are 0 and 0.75. Flipped signs give +-0.5 +-0.25: 2 of 4.
    ours, theirs = [[[1.0, 1.0]], [[1.0, 1.0, 0.0, None, 0.0]]], [[[1.0, 0.0]], [[0.0, 1.0, 0.0, 1.0, 0.0]]]
    found = difference(*zip(ours, theirs, strict=True), is_share=True)
    assert found == Difference(measured=Measured(value=0.375, low=0.0, high=0.75, n=6), p=0.5, test="sign_flip")
    assert level(*theirs, is_share=True).value == (1 / 2 + 2 / 5) / 2
    assert level(*theirs, is_share=True).n == 7
    assert level([[1.0]], [[None]], is_share=True) == UNMEASURED
    assert difference(([[1.0]], [[0.0]]), ([[1.0]], [[None]]), is_share=True) is None


def test_means_over_sets_of_several_runs_add_the_variances_of_the_sets() -> None:
    # The four cells of the test below, and the same without questions or runs that differ: 0.5 everywhere. The means of
    # runs over sets are 0.4 and 0.65: variance 0.03125, of their mean 0.015625. Questions 0.0225 / 4, rest 0.0025 / 4:
    # 0.020625 together, a quarter of the one set's. Freedom 0.020625^2 / (0.015625^2 + 0.005625^2) = 1.5425, as below.
    found = level([[0.2, 0.4], [0.6, 1.0]], [[0.5, 0.5, 0.5]] * 2, is_share=False)
    assert (found.value, found.n) == (pytest.approx(0.525), 5)
    assert found.high == pytest.approx(0.525 + 5.79 * math.sqrt(0.020625), rel=1e-3)


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
    found = compared(ours, theirs, is_share=False)
    assert found.test == "student"
    assert found.measured.value == pytest.approx(0.2)
    # Each arm's runs differ by 0.01: variance 5e-5, of the mean 2.5e-5, twice; freedom 2, bound 4.303.
    assert found.measured.high == pytest.approx(0.2 + 4.303 * math.sqrt(5e-5), rel=1e-3)
    assert found.p < 0.01


def test_differences_of_shares_stay_possible() -> None:
    measured = compared([[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], is_share=True).measured
    assert (measured.low, measured.high) == (-1.0, 1.0)
    assert level([[1.0] * 10, [1.0] * 10], is_share=True) == wilson(10, 10)
    negative = level([[-0.2, 0.3, 0.1], [-0.1, 0.2, 0.2]], is_share=False)  # possible where its values are
    assert negative.low is not None
    assert negative.low < 0


def compared(ours: Runs, theirs: Runs, *, is_share: bool) -> Difference:
    found = difference((ours, theirs), is_share=is_share)
    assert found is not None
    return found


def covered(measured: Measured, truth: float) -> bool:
    assert measured.low is not None
    assert measured.high is not None
    return measured.low <= truth <= measured.high


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
        hits.append(covered(compared(arm(5.1, questions), arm(5.0, questions), is_share=False).measured, 0.1))
    assert np.mean(hits) >= 0.91
    assert between_runs == 0 or np.mean(hits) <= 0.995


@pytest.mark.parametrize(
    ("one", "other", "agreement"),
    [
        ([1, 2, 3], [0.1, 5, 70], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3], [1, 3, 2], pytest.approx(1 / 3)),
        ([0, 0, 1, 1], [0, 0, 1, 1], 1),
        ([0, 0, 1], [0, 1, 2], pytest.approx(2 / math.sqrt(2 * 3))),  # ties of one score alone
        *((same, [1, 2, 3][: len(same)], None) for same in ([1, 1, 1], [1], [])),  # no order to agree with
    ],
)
def test_rank_agreement_by_hand(one: list[float], other: list[float], agreement: float | None) -> None:
    assert kendall_tau_b(one, other) == agreement
