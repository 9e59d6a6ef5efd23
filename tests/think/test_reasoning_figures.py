"""Mean@k, Pass@k and the floor of guessing."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from sleuth.think.reasoning import guessed_pass, pass_at, problem_figures, suite_figures


def record(right: list[float], guess: float = 0.0) -> dict[str, Any]:
    return {"right": right, "guess": guess, "answered": [1.0] * len(right), "cut": [0.0] * len(right)}


@pytest.mark.parametrize("right", [[1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0], [1, 1, 1]])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(right: list[float]) -> None:
    for k in range(1, len(right) + 1):
        chosen = list(combinations(right, k))
        assert pass_at(k, right) == pytest.approx(sum(any(some) for some in chosen) / len(chosen))
    with pytest.raises(ValueError, match="samples"):
        pass_at(len(right) + 1, right)


def test_samples_of_a_problem_are_one_draw() -> None:
    figures = problem_figures([record([1, 0, 0, 0]), record([0, 0, 0, 0])], 4)
    assert (figures["mean_at_4"].value, figures["mean_at_4"].n) == (1 / 8, 2)
    assert (figures["pass_at_4"].value, figures["pass_at_4"].n) == (1 / 2, 2)
    assert "guessed_pass" not in figures


def test_who_guesses_among_four_is_right_within_eight_in_nine_of_ten_and_nothing_is_left_above_it() -> None:
    assert guessed_pass(8, 0.25) == pytest.approx(0.8999, abs=1e-4)
    draw = random.Random(0)
    records = [record([float(draw.random() < 0.25) for _ in range(8)], 0.25) for _ in range(400)]
    figures = problem_figures(records, 8)
    assert figures["guessed_pass"].value == pytest.approx(0.8999, abs=1e-4)
    for name in ("mean_over_guess", "pass_over_guess"):
        low, high = figures[name].low, figures[name].high
        assert low is not None
        assert high is not None
        assert low < 0 < high


def test_a_set_counts_alike_however_large_it_is() -> None:
    figures = suite_figures([[record([1, 1])] * 3, [record([0, 0], 0.25)]], 2)
    assert figures["mean_at_2"].value == 0.5
    assert figures["pass_at_2"].value == 0.5
    assert figures["guessed_pass"].value == pytest.approx((1 - 0.75**2) / 2)
