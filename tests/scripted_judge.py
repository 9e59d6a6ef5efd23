"""A judge that gives the verdicts that a test wrote for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sleuth.types import Case, Verdict


class ScriptedJudge:
    """Returns `scores[claim, evidence]`, else `default`; None is a missing verdict. `calls` holds the cases of every
    call."""

    def __init__(self, scores: Mapping[tuple[str, str], float | None], default: float | None = 0.0) -> None:
        self.scores = scores
        self.default = default
        self.calls: list[tuple[Case, ...]] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.calls.append(tuple(cases))
        scores = [self.scores.get((case.claim, case.evidence), self.default) for case in cases]
        return [Verdict(score=score, reason="timed out" if score is None else "scripted") for score in scores]
