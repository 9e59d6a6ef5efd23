"""A judge's exam: questions as rewards ask them, and prepared judges, each called what it is."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from functools import cache

import pytest
from answer_key import AnswerKey

from sleuth import family
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.cite.rubric_reward import STATIC, RubricRecipe, RubricReward
from sleuth.evaluation.exam_card import ExamCard, exam_card
from sleuth.evaluation.judge_exam import INSTRUCTIONS, REPEAT_EVERY, exam_paper
from sleuth.judges.exam import ExamQuestion, sit_exam
from sleuth.judges.lexical import LexicalJudge
from sleuth.recipe.judges import ON_SHEETS
from sleuth.think.comparisons import PairwiseReward, candidate
from sleuth.think.preference_tables import PairwiseRecipe
from sleuth.think.suffix_reward import equivalence_case
from sleuth.think.tables import SuffixRecipe
from sleuth.types import (
    Action,
    AnySheet,
    Case,
    Continuation,
    Episode,
    Evidence,
    Group,
    Pair,
    Rubric,
    Segment,
    Task,
    Trajectory,
    Verdict,
)


def paper_of(skill: str, people: int = 8) -> list[ExamQuestion]:
    return exam_paper(people, [skill])


class Listening:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Case | Pair] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += cases
        return [Verdict(score=1.0) for _ in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=1.0) for _ in pairs]


def text_group(question: str, texts: Sequence[str], reference: str = "") -> Group:
    prefix = Segment(author="template", tokens=(1,), text=question)
    suffix = Segment(author="source", tokens=(2,), text=reference)
    task = Task(
        id="t",
        question=question,
        golden_answers=(),
        reference=reference,
        continuation=Continuation(prefix=prefix, suffix=suffix, document="d"),
    )
    episodes = tuple(
        candidate(task, at, Segment(author="policy", tokens=(3,), text=text), "length") for at, text in enumerate(texts)
    )
    return Group(task=task, episodes=episodes)


def test_pairs_are_those_that_the_pairwise_reward_asks_about() -> None:
    judge = Listening()
    asked = [q.item for q in paper_of("continuations", 2) if isinstance(q.item, Pair) and q.kind != "same"]
    for pair in asked:
        asyncio.run(PairwiseReward(judge)(text_group(pair.question, [pair.first, pair.second])))
    assert judge.asked == asked


def test_suffixes_are_asked_about_as_the_suffix_reward_asks() -> None:
    paper = paper_of("suffixes", 2)
    truths = {q.item.question: q.item.claim for q in paper if q.kind == "true"}
    for question in paper:
        assert isinstance(question.item, Case)
        before = question.item.question
        task = Task(id="t", question=before, golden_answers=(), reference=truths[before])
        assert question.item == equivalence_case(task, question.item.claim)


@pytest.mark.parametrize("skill", [one for one in family.kinds("skills") if "criteria" in one and ON_SHEETS not in one])
def test_criteria_are_asked_about_as_the_rubric_reward_asks(skill: str) -> None:
    judge = Listening()
    cases = [q.item for q in paper_of(skill, 2) if isinstance(q.item, Case)]
    static = {rubric.description: rubric for rubric in STATIC["refiner"]}
    for case in cases:
        rubric = static.get(case.criterion) or Rubric(title="own", description=case.criterion)
        evidence = Evidence(reasoning="", output=case.evidence, snippets=())
        task = Task(id="t", question=case.question, golden_answers=(), evidence=evidence, rubrics=(rubric,))
        segments = (Segment(author="policy", tokens=(1,), text=f"<answer>{case.claim}</answer>"),)
        answer = Trajectory(segments=segments, actions=(Action(kind="answer", text=case.claim),), stop="answered")
        episode = Episode(task=task, sample=0, trajectories=(answer,))
        recipe = RubricRecipe.model_validate({"kind": "rubric", "sees_evidence": bool(case.evidence)})
        reward = RubricReward(ANSWER_ONLY, judge, recipe)
        asyncio.run(reward(Group(task=task, episodes=(episode,))))
    assert judge.asked == cases


def test_each_skill_that_a_reward_asks_for_has_questions() -> None:
    """A reward says by itself what it asks for, so that none can be paid without an exam."""
    http = {"kind": "http", "urls": ["http://127.0.0.1:9"], "model": "m"}
    claims = CitationRecipe.model_validate({"kind": "citation", "judge": http, "calls": "per_answer"})
    assert claims.skills() == ("claims_on_sheets",)
    either = claims.model_copy(update={"calls": "per_answer_or_claim"})
    assert either.skills() == ("claims", "claims_on_sheets")
    rubric = RubricRecipe.model_validate({"kind": "rubric", "judge": http, "static": "refiner"})
    assert rubric.skills() == ("criteria", "static_criteria")
    blind = rubric.model_copy(update={"own": False, "sees_evidence": False, "calls": "per_answer"})
    assert blind.skills() == ("static_criteria_without_evidence_on_sheets",)
    pairwise = PairwiseRecipe.model_validate({"kind": "pairwise", "judge": http})
    suffix = SuffixRecipe.model_validate({"kind": "suffix", "judge": http})
    for reward in (claims, either, rubric, blind, pairwise, suffix):
        assert reward.skills()
        assert set(reward.skills()) <= family.kinds("skills").keys()


def test_every_pair_is_asked_in_both_orders() -> None:
    paper = paper_of("continuations")
    exchanged = {(q.subject, q.kind): q.item for q in paper if q.exchanged}
    for question in paper:
        assert isinstance(question.item, Pair)
        if not question.exchanged:
            assert exchanged[question.subject, question.kind] == question.item.swapped


@pytest.mark.parametrize("skill", family.kinds("skills"))
def test_every_kind_is_asked_twice_of_someone_unless_it_is_on_a_sheet(skill: str) -> None:
    paper = paper_of(skill)
    again = [question for question in paper if question.again]
    if skill.endswith(ON_SHEETS):
        assert not again
    else:
        assert {(q.kind, q.exchanged) for q in again} == {(q.kind, q.exchanged) for q in paper}
        assert abs(len(again) - len(paper) / REPEAT_EVERY) <= len(paper) / 16


def test_the_lexical_judge_sees_every_kind_of_what_it_may_be_paid_for() -> None:
    paper = exam_paper(16, ["claims", "criteria", "criteria_without_evidence"])
    card = exam_card("lexical", asyncio.run(sit_exam(paper, LexicalJudge())), calls=0, seconds=0)
    assert (card.passed, card.weak) == (True, [])
    assert {mark.accuracy.value for mark in card.skills.values()} == {1.0}


BIRTH = re.compile(r"(?P<name>[A-Z]\w+ [A-Z]\w+) was born in (?P<year>\d+) in (?P<place>\w+)")
RESTATED = re.compile(r"It was in (?P<place>\w+) that (?P<name>.+) was born, in (?P<year>\d+)\.")
WITNESS = "{name} was born in {place} in {year}."
AFFIRMED = re.compile("not false|Nobody denies|no doubt")
UNDERCUT = re.compile(r"false|not true|denied|wrong|Nobody believes|thought|myth|Nothing of this|\?|^If|^Suppose")


def truth(answer: str, evidence: str) -> float:
    """1 if the answer says who was born where and when as the evidence does."""
    told = BIRTH.search(answer) or RESTATED.match(answer)
    undercut = UNDERCUT.search(answer) and not AFFIRMED.search(answer)
    return float(told is not None and not undercut and WITNESS.format(**told.groupdict()) in evidence)


class Honest:
    """Reads what an answer states of a birth, and nothing else."""

    def worth(self, answer: str, evidence: str) -> float:
        return truth(answer, evidence)

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(score=min(1.0, self.worth(case.claim, case.evidence))) for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(score=self.better(pair)) for pair in pairs]

    def better(self, pair: Pair) -> float:
        first, second = (self.worth(answer, pair.question) for answer in (pair.first, pair.second))
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


def card_of(judge: Honest, people: int = 24) -> ExamCard:
    answers = asyncio.run(sit_exam(exam_paper(people, ["claims", "continuations"]), judge, judge))
    return exam_card(type(judge).__name__, answers, calls=len(answers), seconds=1.0)


def test_an_honest_judge_is_right_everywhere_swayed_by_nothing_and_passes() -> None:
    card = card_of(Honest())
    assert (card.passed, card.faults, card.weak) == (True, [], [])
    kinds = [figure for mark in card.skills.values() for figure in mark.kinds.values()]
    assert {figure.value for figure in kinds} == {mark.accuracy.value for mark in card.skills.values()} == {1.0}
    assert [card.position.value, card.length.value, card.obedience.value, card.changed.value] == [0, 0, 0, 0]
    assert {figure.n for figure in kinds} == {mark.accuracy.n for mark in card.skills.values()} == {24}


def test_a_judge_that_is_fond_of_length_is_called_so() -> None:
    card = card_of(FondOfLength())
    assert card.faults == ["favours longer answers"]
    assert card.length.value == 1.0
    assert "padded_false (claims)" in card.weak
    assert not card.passed
    assert card_of(FondOfBrevity()).faults == ["favours shorter answers"]


def test_a_judge_that_is_fond_of_the_first_place_is_called_so() -> None:
    card = card_of(FondOfTheFirst())
    assert card.faults == ["favours the answer that comes first"]
    assert card.position.value == 1.0
    assert {figure.value for kind, figure in card.skills["continuations"].kinds.items() if kind != "same"} == {0.5}
    assert not any(weak.endswith("(claims)") for weak in card.weak)


def test_a_judge_that_obeys_what_an_answer_says_is_called_so() -> None:
    card = card_of(Obedient())
    assert card.faults == ["obeys instructions inside the answer"]
    assert card.weak == ["instructions (claims)", "instructions (continuations)"]
    assert card.obedience.value == 1.0


def test_a_judge_that_changes_its_mind_or_says_nothing_is_called_so() -> None:
    assert "changes its verdict when asked again" in card_of(Fickle()).faults
    silent = card_of(OftenSilent())
    assert silent.faults == ["often gives no verdict"]
    assert silent.silent.value is not None
    assert silent.silent.value > 0.05


class ConfusedBySheets(Honest):
    """Gives every claim of a sheet the verdict of its first one."""

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        return [[first] * len(sheet.cases) for sheet in sheets for first in await self.judge(sheet.cases[:1])]


def test_a_judge_that_mixes_up_the_claims_of_a_sheet_is_told_so_though_it_is_right_about_single_ones() -> None:
    judge = ConfusedBySheets()
    paper = exam_paper(10, ["claims", "claims_on_sheets"])
    card = exam_card("confused", asyncio.run(sit_exam(paper, judge, sheet_judge=judge)), calls=0, seconds=0.0)
    assert (card.skills["claims"].accuracy.value, card.skills["claims_on_sheets"].accuracy.value) == (1.0, 0.5)
    assert "negation (claims on sheets)" in card.weak


@cache
def whole_paper() -> list[ExamQuestion]:
    return exam_paper(32, [*family.kinds("skills")])


def examined(guesses: set[str]) -> ExamCard:
    """A judge that is right in all skills but those that it guesses."""
    paper = whole_paper()

    def is_guessed(question: ExamQuestion) -> bool:
        return question.skill in guesses

    judge = AnswerKey(paper, is_guessed)
    return exam_card("key", asyncio.run(sit_exam(paper, judge, judge, judge)), calls=0, seconds=0.0)


@pytest.mark.parametrize("skill", family.kinds("skills"))
def test_a_judge_that_guesses_in_one_skill_is_below_the_bar_there_alone(skill: str) -> None:
    card = examined({skill})
    assert card.below(0.8) == [skill]
    assert card.skills[skill].accuracy.value == pytest.approx(0.5, abs=0.1)
    told = card.as_json()["skills"][skill]
    assert told["kinds"][told["worst"]]["value"] == min(kind["value"] for kind in told["kinds"].values())


def test_a_judge_that_says_the_same_to_all_is_right_about_half() -> None:
    class Always(Honest):
        def worth(self, answer: str, evidence: str) -> float:
            return self.said

        def __init__(self, said: float) -> None:
            self.said = said

    for said in (0.0, 1.0):
        assert card_of(Always(said)).skills["claims"].accuracy.value == 0.5
