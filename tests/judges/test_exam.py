from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from sleuth.judges.exam import FILLER, INSTRUCTIONS, REPEAT_EVERY, exam_paper, sit_exam
from sleuth.types import AnySheet, Case, Pair, Verdict


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


def test_the_paper_asks_each_kind_of_each_person_and_each_pair_in_both_orders() -> None:
    paper = exam_paper(6)
    cases = Counter(q.kind for q in paper if isinstance(q.item, Case))
    pairs = Counter((q.kind, q.exchanged) for q in paper if isinstance(q.item, Pair))
    assert set(cases.values()) == set(pairs.values()) == {6}
    assert (len(cases), len(pairs)) == (9, 16)
    exchanged = {(q.subject, q.kind): q.item for q in paper if q.exchanged}
    for question in paper:
        if isinstance(question.item, Pair) and not question.exchanged:
            assert exchanged[question.subject, question.kind] == question.item.swapped
    assert [q for q in paper if isinstance(q.item, Case)] == exam_paper(6, pairs=False)


def test_the_same_seed_is_the_same_paper_and_another_is_another() -> None:
    assert exam_paper(3) == exam_paper(3)
    assert not {q.item for q in exam_paper(3)} & {q.item for q in exam_paper(3, seed=1)}


def test_what_is_true_stands_in_the_evidence_and_what_was_spoiled_does_not() -> None:
    for question in exam_paper(20):
        if not isinstance(question.item, Case):
            continue
        claim, evidence = question.item.claim, question.item.evidence
        facts = claim.split(".")[0].replace(" was born in ", "|").replace(" in ", "|").split("|")
        stated = any(all(fact in snippet for fact in facts) for snippet in evidence.split("\n\n"))
        if question.kind in ("true", "right_id_among_wrong"):
            assert stated
        elif claim and question.kind != "negation":
            assert not stated
        if question.kind == "entity_swapped":
            assert all(fact in evidence for fact in facts)  # somebody else's


def test_an_instruction_takes_the_place_of_at_least_as_many_words_that_say_nothing() -> None:
    assert max(map(len, INSTRUCTIONS)) <= min(map(len, FILLER))
    paper = exam_paper(5)
    for kind in (Case, Pair):
        texts = {(q.subject, q.kind): q.item for q in paper if isinstance(q.item, kind) and not q.exchanged}
        for subject in range(5):
            instructed, padded = (
                asked.claim if isinstance(asked, Case) else asked.first
                for asked in (texts[subject, "instructions"], texts[subject, "padded_false"])
            )
            assert len(instructed) <= len(padded)


def test_every_seventh_question_is_asked_twice_and_every_kind_is_among_them() -> None:
    judge, shown = Silent(), []
    paper = exam_paper(8)
    answers = asyncio.run(sit_exam(paper, judge, judge, progress=lambda done, total: shown.append((done, total))))
    again = [answer.question for answer in answers if answer.repeated is not None]
    assert again == paper[::REPEAT_EVERY]
    assert {(q.kind, type(q.item)) for q in again} == {(q.kind, type(q.item)) for q in paper}
    assert Counter(judge.asked) == Counter([q.item for q in paper] + [q.item for q in again])
    total = len(paper) + len(again)
    assert shown == [(done + 1, total) for done in range(total)]


def test_a_judge_of_sheets_is_asked_the_cases_about_each_person_once_more_together() -> None:
    judge, shown = Silent(), []
    paper = exam_paper(8)
    answers = asyncio.run(
        sit_exam(paper, judge, judge, judge, progress=lambda done, total: shown.append((done, total)))
    )
    cases = [q for q in paper if isinstance(q.item, Case)]
    assert [answer.question for answer in answers if answer.on_sheet] == cases
    assert [case for sheet in judge.sheets for case in sheet.cases] == [q.item for q in cases]
    assert [len(sheet.cases) for sheet in judge.sheets] == [9] * 8
    assert shown[-1] == (len(judge.asked) + 8, len(judge.asked) + 8)
