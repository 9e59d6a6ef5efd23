"""A judge that says what it was told to: for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sleuth.types import Case, Verdict


class ScriptedJudge:
    """`scores[claim, evidence]`, and `otherwise` of what is not there; None is a judge that is out. `asked` keeps every
    call."""

    def __init__(self, scores: Mapping[tuple[str, str], float | None], otherwise: float | None = 0.0) -> None:
        self.scores = scores
        self.otherwise = otherwise
        self.asked: list[tuple[Case, ...]] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked.append(tuple(cases))
        scores = [self.scores.get((case.claim, case.evidence), self.otherwise) for case in cases]
        return [Verdict(score=score, reason="timed out" if score is None else "as told") for score in scores]
