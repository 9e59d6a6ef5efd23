"""Prepared judges, each called what it is."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence

import pytest

from sleuth.judges.exam import FILLER, INSTRUCTIONS, exam_paper, sit_exam
from sleuth.metrics.exam_card import ExamCard, exam_card
from sleuth.metrics.intervals import wilson
from sleuth.types import AnySheet, Case, Pair, Verdict

BIRTH = re.compile(r"(.+?) was born in (\d+) in (\w+)\.")
WITNESS = "{} was born in {} in {}."


def truth(answer: str, evidence: str) -> float:
    """1 if the answer says who was born where and when as the evidence does."""
    told = BIRTH.match(answer)
    return float(told is not None and WITNESS.format(told[1], told[3], told[2]) in evidence)


class Honest:
    """Reads what an answer states of a birth, and nothing else."""

    def worth(self, answer: str, evidence: str) -> float:
        return truth(answer, evidence)

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(score=min(1.0, self.worth(case.claim, case.evidence))) for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(score=self.better(pair)) for pair in pairs]

    def better(self, pair: Pair) -> float:
        first, second = (self.worth(answer, pair.evidence) for answer in (pair.first, pair.second))
        return 0.5 if first == second else float(first > second)


class FondOfLength(Honest):
    def worth(self, answer: str, evidence: str) -> float:
        return len(answer) / 100 if len(answer) > 200 else truth(answer, evidence)


class FondOfBrevity(Honest):
    def worth(self, answer: str, evidence: str) -> float:
        return truth(answer, evidence) if len(answer) < 200 else 0.0

    def better(self, pair: Pair) -> float:
        return float(len(pair.first) < len(pair.second)) if abs(len(pair.first) - len(pair.second)) > 99 else 0.5


class FondOfTheFirst(Honest):
    def better(self, pair: Pair) -> float:
        return 1.0


class Obedient(Honest):
    def worth(self, answer: str, evidence: str) -> float:
        told = any(instruction in answer for instruction in INSTRUCTIONS)
        return 2.0 if told else truth(answer, evidence)


class Fickle(Honest):
    """Says the opposite every third time."""

    def __init__(self) -> None:
        self.times = itertools.count()

    def worth(self, answer: str, evidence: str) -> float:
        return 1 - truth(answer, evidence) if next(self.times) % 3 == 0 else truth(answer, evidence)


class OftenSilent(Honest):
    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        answered = await super().judge(cases)
        return [v if len(c.claim) % 5 else Verdict(score=None) for c, v in zip(cases, answered, strict=True)]


class CountsWords(Honest):
    """Knows words, and neither what is denied nor what belongs together."""

    def worth(self, answer: str, evidence: str) -> float:
        names = re.findall(r"[A-Z]\w+|\d+", answer.partition(".")[0])
        return float(bool(names) and all(name in evidence for name in names))


def card_of(judge: Honest, people: int = 24) -> ExamCard:
    answers = asyncio.run(sit_exam(exam_paper(people), judge, judge))
    return exam_card(type(judge).__name__, answers, calls=len(answers), seconds=1.0)


def test_an_honest_judge_is_right_everywhere_swayed_by_nothing_and_passes() -> None:
    card = card_of(Honest())
    assert (card.passed, card.faults, card.weak) == (True, [], [])
    assert {figure.value for figure in [*card.cases.values(), *card.pairs.values()]} == {1.0}
    assert [card.position.value, card.length.value, card.obedience.value, card.changed.value] == [0, 0, 0, 0]
    assert card.cases["negation"].n == card.pairs["same"].n == 24


def test_a_judge_that_is_fond_of_length_is_called_so() -> None:
    card = card_of(FondOfLength())
    assert card.faults == ["favours longer answers"]
    assert card.length.value == 1.0
    assert "padded_false (cases)" in card.weak
    assert not card.passed
    assert card_of(FondOfBrevity()).faults == ["favours shorter answers"]


def test_a_judge_that_is_fond_of_the_first_place_is_called_so() -> None:
    card = card_of(FondOfTheFirst())
    assert card.faults == ["favours the answer that comes first"]
    assert card.position.value == 1.0
    assert {figure.value for kind, figure in card.pairs.items() if kind != "same"} == {0.5}
    assert not any(weak.endswith("(cases)") for weak in card.weak)


def test_a_judge_that_obeys_what_an_answer_says_is_called_so() -> None:
    card = card_of(Obedient())
    assert card.faults == ["obeys instructions inside the answer"]
    assert card.weak == ["instructions (cases)", "instructions (pairs)"]
    assert card.obedience.value == 1.0


def test_a_judge_that_changes_its_mind_or_says_nothing_is_called_so() -> None:
    assert "changes its verdict when asked again" in card_of(Fickle()).faults
    silent = card_of(OftenSilent())
    assert silent.faults == ["often gives no verdict"]
    assert silent.silent.value is not None
    assert silent.silent.value > 0.05


def test_a_judge_that_only_knows_words_is_told_which_kinds_it_misses() -> None:
    card = card_of(CountsWords())
    assert card.faults == []
    assert card.weak == [
        "entity_swapped (cases)",
        "negation (cases)",
        "entity_swapped (pairs)",
        "negation (pairs)",
    ]


def test_a_judge_that_compares_nothing_is_examined_on_cases_alone() -> None:
    answers = asyncio.run(sit_exam(exam_paper(10, pairs=False), Honest()))
    card = exam_card("honest", answers, calls=0, seconds=0.0)
    assert (card.passed, card.pairs, card.position.n) == (True, {}, 0)
    told = card.as_json()
    assert told["passed"] is True
    assert told["cases"]["true"] == wilson(10, 10).as_json()


class ConfusedBySheets(Honest):
    """Gives every claim of a sheet the verdict of its first one."""

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        return [[first] * len(sheet.cases) for sheet in sheets for first in await self.judge(sheet.cases[:1])]


def test_a_judge_that_mixes_up_the_claims_of_a_sheet_is_told_so_though_it_is_right_about_single_ones() -> None:
    judge = ConfusedBySheets()
    answers = asyncio.run(sit_exam(exam_paper(10, pairs=False), judge, sheet_judge=judge))
    card = exam_card("confused", answers, calls=0, seconds=0.0)
    assert card.accuracy == 1.0
    assert card.sheet_accuracy == pytest.approx(2 / 9)
    assert "negation (sheets)" in card.weak
    assert card.as_json()["sheet_accuracy"] == card.sheet_accuracy


def test_filler_says_nothing_of_a_birth() -> None:
    assert not any(BIRTH.search(sentence) for sentence in FILLER + INSTRUCTIONS)
