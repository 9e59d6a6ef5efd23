from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from sleuth.evaluation.judge_exam import exam_paper
from sleuth.judges.exam import sit_exam
from sleuth.types import AnySheet, Case, ClaimSheet, Pair, Sheet, Verdict


class Silent:
    """Says nothing, and counts."""

    def __init__(self) -> None:
        self.asked: list[Case | Pair] = []
        self.sheets: list[AnySheet] = []

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        self.sheets += sheets
        return [[Verdict(score=None)] * len(sheet.cases) for sheet in sheets]

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += cases
        return [Verdict(score=None) for _ in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=None) for _ in pairs]


def test_every_question_is_asked_once_and_some_a_second_time() -> None:
    judge, shown = Silent(), []
    paper = exam_paper(8, ["claims", "continuations"])
    answers = asyncio.run(sit_exam(paper, judge, judge, progress=lambda done, total: shown.append((done, total))))
    again = [answer.question for answer in answers if answer.repeated is not None]
    assert again == [question for question in paper if question.again]
    assert Counter(judge.asked) == Counter([q.item for q in paper] + [q.item for q in again])
    total = len(paper) + len(again)
    assert shown == [(done + 1, total) for done in range(total)]


def test_what_is_on_sheets_is_asked_together_as_rewards_do() -> None:
    judge, shown = Silent(), []
    paper = exam_paper(8, ["claims_on_sheets", "static_criteria_on_sheets"])
    answers = asyncio.run(
        sit_exam(paper, judge, judge, judge, progress=lambda done, total: shown.append((done, total)))
    )
    assert Counter(answer.question for answer in answers) == Counter(paper)
    assert Counter(case for sheet in judge.sheets for case in sheet.cases) == Counter(q.item for q in paper)
    claims = [sheet for sheet in judge.sheets if isinstance(sheet, ClaimSheet)]
    criteria = [sheet for sheet in judge.sheets if isinstance(sheet, Sheet)]
    assert [len(sheet.cases) for sheet in claims] == [16] * 8
    assert {len(sheet.criteria) for sheet in criteria} == {2, 3}  # all criteria of an answer
    assert not judge.asked
    assert shown[-1] == (len(judge.sheets), len(judge.sheets))
