from __future__ import annotations

import math

import numpy as np
import pytest

from sleuth.evaluation.significance import mcnemar, sign_flip, student_bound, student_p


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    # Twice the binomial tail of the smaller count: 2 (1 + 10) / 2^10, 2 / 2^5, 2 (1 + 12 + 66) / 2^12.
    [(9, 1, 22 / 1024), (0, 5, 2 / 32), (10, 2, 158 / 4096), (3, 3, 1.0), (0, 0, 1.0), (1, 0, 1.0)],
)
def test_mcnemar_is_the_exact_binomial_test_of_the_pairs_that_disagree(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == mcnemar(lost, gained) == p


def test_mcnemar_stands_thousands_of_questions() -> None:
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


def test_a_p_value_is_below_one_in_twenty_in_one_of_twenty_worlds_without_a_difference() -> None:
    rng = np.random.default_rng(1)
    small = [sign_flip(list(rng.normal(size=12))) < 0.05 for _ in range(400)]
    assert np.mean(small) == pytest.approx(0.05, abs=0.035)  # about three standard errors


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
