from __future__ import annotations

import pytest

from sleuth.evaluation.intervals import UNMEASURED, wilson
from sleuth.think.win_rate import win_rate
from sleuth.types import Verdict


def verdicts(*scores: float | None) -> list[Verdict]:
    return [Verdict(score=score) for score in scores]


def test_ties_are_halves_of_the_rate_and_no_part_of_the_sign_test() -> None:
    found = win_rate(verdicts(*[1.0] * 9, 0.0, *[0.5] * 4))
    assert (found.wins, found.ties, found.losses, found.missing) == (9, 4, 1, 0)
    assert found.rate == wilson(11, 14)
    assert found.p == 22 / 1024


def test_a_failed_comparison_is_missing_and_never_a_loss() -> None:
    found = win_rate([*verdicts(1.0, 1.0, None), Verdict(score=None, invalid=True)])
    assert (found.wins, found.losses, found.missing, found.rate.value, found.rate.n) == (2, 0, 2, 1.0, 2)
    assert win_rate(verdicts(None)).rate == UNMEASURED


def test_pairs_about_one_task_are_one_draw() -> None:
    found = win_rate(verdicts(1, 1, 0, 0.5, 0, None, None), tasks=["a", "a", "a", "b", "c", "c", "d"])
    assert (found.wins, found.ties, found.losses, found.missing) == (1, 1, 1, 1)
    assert found.rate.n == 3
    assert found.rate.value == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_it_is_one_object_with_its_interval() -> None:
    told = win_rate(verdicts(1.0, 0.0)).as_json()
    assert told["rate"] == wilson(1, 2).as_json()
    assert told | {"rate": None} == {"rate": None, "wins": 1, "ties": 0, "losses": 1, "missing": 0, "p": 1.0}
