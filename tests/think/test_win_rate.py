from __future__ import annotations

from sleuth.evaluation.intervals import UNMEASURED, wilson
from sleuth.think.win_rate import win_rate
from sleuth.types import Verdict


def verdicts(*scores: float | None) -> list[Verdict]:
    return [Verdict(score=score) for score in scores]


def test_ties_are_halves_of_the_rate_and_no_part_of_the_sign_test() -> None:
    found = win_rate(verdicts(*[1.0] * 9, 0.0, *[0.5] * 4))
    counts = {"wins": 9, "ties": 4, "losses": 1, "no_verdict": 0, "p": 22 / 1024}
    assert found == {"win_rate": wilson(11, 14).as_json(), **counts}


def test_a_failed_comparison_is_missing_and_never_a_loss() -> None:
    found = win_rate([*verdicts(1.0, 1.0, None), Verdict(score=None, invalid=True)])
    assert (found["wins"], found["losses"], found["no_verdict"], found["win_rate"]["n"]) == (2, 0, 2, 2)
    assert win_rate(verdicts(None))["win_rate"] == UNMEASURED.as_json()
