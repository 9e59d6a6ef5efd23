"""The questions of the exam are those that rewards ask, and their right answers are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import get_args

import pytest

from sleuth import family
from sleuth.answers.exam_paper import FILLER, INSTRUCTIONS, REPEAT_EVERY, exam_paper
from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.cite.measure import MAX_SHEET
from sleuth.cite.rewards import CitationRecipe, RubricRecipe
from sleuth.cite.rubric_reward import STATIC, Criteria, RubricReward
from sleuth.evaluation.exam_card import exam_card
from sleuth.judges.exam import ExamQuestion, sit_exam
from sleuth.judges.lexical import LexicalJudge
from sleuth.recipe.judges import ON_SHEETS
from sleuth.think.preference_rewards import PairwiseReward, PointwiseReward, candidate
from sleuth.think.preference_tables import PairwiseRecipe, PointwiseRecipe
from sleuth.think.suffix_reward import equivalence_case
from sleuth.think.tables import SuffixRecipe
from sleuth.types import (
    Action,
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


@pytest.mark.parametrize("dimension", ["quality", "factuality", "safety"])
def test_graded_continuations_are_those_that_the_pointwise_reward_asks_about(dimension: str) -> None:
    judge = Listening()
    cases = [q.item for q in paper_of(dimension, 2) if isinstance(q.item, Case)]
    truths = {q.item.question: q.item.claim for q in paper_of(dimension, 2) if q.kind == "true"}
    for case in cases:
        group = text_group(case.question, [case.claim], reference=truths[case.question])
        asyncio.run(PointwiseReward(judge, dimension)(group))
    assert judge.asked == cases


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
        reward = RubricReward(ANSWER_ONLY, Criteria(), judge, sees_evidence=bool(case.evidence))
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
    pointwise = [
        PointwiseRecipe.model_validate({"kind": "pointwise", "judge": http, "dimension": dimension})
        for dimension in get_args(PointwiseRecipe.model_fields["dimension"].annotation)
    ]
    for reward in (claims, either, rubric, blind, pairwise, suffix, *pointwise):
        assert reward.skills()
        assert set(reward.skills()) <= family.kinds("skills").keys()


@pytest.mark.parametrize("skill", family.kinds("skills"))
def test_each_kind_is_asked_about_each_person_with_one_right_answer(skill: str) -> None:
    paper = paper_of(skill)
    singly = [(q.subject, q.kind) for q in paper if not q.exchanged and q.kind != "same_answer"]
    assert len(set(singly)) == len(singly)
    assert len({kind for _, kind in singly}) * 8 == len(singly)
    rights: dict[Case | Pair, float] = {}
    for question in paper:
        right = 1 - question.right if question.exchanged else question.right
        assert rights.setdefault(question.item, right) == right
    if isinstance(paper[0].item, Case):
        assert set(rights.values()) == {0.0, 1.0}


def test_every_pair_is_asked_in_both_orders() -> None:
    paper = paper_of("continuations")
    exchanged = {(q.subject, q.kind): q.item for q in paper if q.exchanged}
    for question in paper:
        assert isinstance(question.item, Pair)
        if not question.exchanged:
            assert exchanged[question.subject, question.kind] == question.item.swapped


def test_the_same_seed_is_the_same_paper_and_another_is_another() -> None:
    assert exam_paper(3, [*family.kinds("skills")]) == exam_paper(3, [*family.kinds("skills")])
    assert not {q.item for q in exam_paper(3, ["claims"])} & {q.item for q in exam_paper(3, ["claims"], seed=1)}


@pytest.mark.parametrize("skill", family.kinds("skills"))
def test_every_kind_is_asked_twice_of_someone_unless_it_is_on_a_sheet(skill: str) -> None:
    paper = paper_of(skill)
    again = [question for question in paper if question.again]
    if skill.endswith(ON_SHEETS):
        assert not again
    else:
        assert {(q.kind, q.exchanged) for q in again} == {(q.kind, q.exchanged) for q in paper}
        assert abs(len(again) - len(paper) / REPEAT_EVERY) <= len(paper) / 16


def test_a_sheet_of_the_exam_has_no_more_claims_than_one_of_the_reward() -> None:
    assert len(paper_of("claims", 1)) <= MAX_SHEET


def test_an_instruction_takes_the_place_of_at_least_as_many_words_that_say_nothing() -> None:
    assert max(map(len, INSTRUCTIONS)) <= min(map(len, FILLER))


def test_the_lexical_judge_sees_every_kind_of_what_it_may_be_paid_for() -> None:
    paper = exam_paper(16, ["claims", "criteria", "criteria_without_evidence"])
    card = exam_card("lexical", asyncio.run(sit_exam(paper, LexicalJudge())), calls=0, seconds=0)
    assert (card.passed, card.weak) == (True, [])
    assert {mark.accuracy.value for mark in card.skills.values()} == {1.0}
