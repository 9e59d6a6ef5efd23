"""A judge that is watched says what it says; how far another one agrees is told beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.judges.watched import Watch, WatchedJudge, WatchedSheetJudge, agreement
from sleuth.types import AnySheet, Case, Sheet, Verdict


class Says:
    """Gives each case the score of its claim; `asked` counts them."""

    identity = "says"

    def __init__(self, **scores: float | None) -> None:
        self.scores = scores
        self.asked = 0

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += len(cases)
        return [Verdict(score=self.scores[case.criterion or case.claim]) for case in cases]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        return [await self.judge(sheet.cases) for sheet in sheets]


def cases(*claims: str) -> list[Case]:
    return [Case(claim=claim, evidence="") for claim in claims]


def test_the_one_who_watches_changes_no_verdict_and_differences_are_told_once() -> None:
    watch = Watch(Says(a=1.0, b=0.5, c=None, d=1.0), share=1.0)
    judge = WatchedJudge(Says(a=1.0, b=0.0, c=1.0, d=None), watch)
    verdicts = asyncio.run(judge.judge(cases("a", "b", "c", "d")))
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 1.0, None]
    apart = watch.take()
    assert apart == [0.0, 0.5]  # where either said nothing, nothing is compared
    assert agreement(apart) == 0.75
    assert watch.take() == []
    assert agreement([]) is None


def test_a_fixed_share_of_the_groups_is_watched_the_same_ones_each_time() -> None:
    names = [f"claim {n}" for n in range(400)]
    scores = dict.fromkeys(names, 1.0)
    seen = []
    for _ in range(2):
        watcher = Says(**scores)
        judge = WatchedJudge(Says(**scores), Watch(watcher, share=0.25))
        for name in names:
            asyncio.run(judge.judge(cases(name)))
        seen.append(watcher.asked)
    assert seen[0] == seen[1]
    assert seen[0] == pytest.approx(100, abs=35)  # four standard deviations


def test_a_sheet_is_watched_criterion_by_criterion() -> None:
    watch = Watch(Says(x=1.0, y=1.0), share=1.0)
    judge = WatchedSheetJudge(Says(x=1.0, y=0.0), watch)
    sheets = [Sheet(answer="a", criteria=("x", "y")), Sheet(answer="b", criteria=("y",))]
    found = asyncio.run(judge.rate(sheets))
    assert [[verdict.score for verdict in of_sheet] for of_sheet in found] == [[1.0, 0.0], [0.0]]
    assert watch.take() == [0.0, 1.0, 1.0]
