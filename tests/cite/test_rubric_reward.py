"""The rubric reward of whole episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sleuth.cite.dialect import REFINERS
from sleuth.cite.rubric_reward import (
    AGGREGATIONS,
    REFINER,
    Graded,
    RubricRecipe,
    RubricReward,
    absolute_weights,
    mean_flipped,
    positive_weights,
)
from sleuth.dialect import DIALECTS
from sleuth.types import (
    Action,
    AnySheet,
    Case,
    Episode,
    Evidence,
    Group,
    Judge,
    Passage,
    Rubric,
    Score,
    Segment,
    Task,
    Trajectory,
    Verdict,
)

TOWN = Rubric(title="Birthplace", description="Ada Voss was born in Tarn.")
SEA = Rubric(title="The sea", description="Tells of the sea.", wanted=False)
OUTPUT = "<snippet id=a1>Ada Voss was born in Tarn in 1874.</snippet>"
EVIDENCE = Evidence(
    reasoning="", output=OUTPUT, snippets=(Passage(id="a1", title="", text="Ada Voss was born in Tarn in 1874."),)
)
TASK = Task(id="q", question="Where was Ada Voss born?", golden_answers=(), evidence=EVIDENCE, rubrics=(TOWN, SEA))
ABSTAINS = "The tool output does not answer this."
BORN = "<snippet id=a1>Ada Voss was born in Tarn.</snippet>"
HTTP = {"kind": "http", "urls": ["http://127.0.0.1:1"], "model": "never asked"}


class Told:
    """A judge that finds what it is told to, by criterion; None is one that is out. `asked` keeps every case."""

    def __init__(self, score: Callable[[str, str], float | None]) -> None:
        self.score = score
        self.asked: list[Case] = []
        self.sheets: list[AnySheet] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += cases
        return [Verdict(score=self.score(case.criterion, case.claim), reason="timed out") for case in cases]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        self.sheets += sheets
        return [[Verdict(score=self.score(case.criterion, case.claim)) for case in sheet.cases] for sheet in sheets]


def episode(answer: str | None, task: Task = TASK, stop: str = "answered") -> Episode:
    written = "Ada Voss" if answer is None else f"<answer>{answer}</answer>"
    trajectory = Trajectory(
        segments=(
            Segment(author="template", tokens=(), text=task.question),
            Segment(author="policy", tokens=(), text=written),
        ),
        actions=(Action(kind="invalid" if answer is None else "answer", text=answer or ""),),
        stop=stop,
    )
    return Episode(task=task, sample=0, trajectories=(trajectory,))


def scored(reward: RubricReward, *episodes: Episode) -> list[Score]:
    return asyncio.run(reward(Group(task=episodes[0].task, episodes=episodes)))


def reward_by(judge: Judge | None, sheet_judge: Told | None = None, **table: object) -> RubricReward:
    recipe = RubricRecipe.model_validate({"kind": "rubric", "judge": HTTP, **table})
    return RubricReward(REFINERS["answer_only"], judge, recipe, sheet_judge=sheet_judge)


def says_so(criterion: str, answer: str) -> float:
    return float("Tarn" in answer if "Tarn" in criterion else "sea" in answer)


def test_what_is_wanted_pays_and_what_is_not_wanted_costs() -> None:
    both, neither, best = scored(
        reward_by(Told(says_so)), episode("Tarn, by the sea."), episode("In a town."), episode(BORN)
    )
    assert [both.value, neither.value, best.value] == [0.5, 0.0, 1.0]  # evasion has no faults, and is paid for none
    assert best.parts == {"rubric": 1.0, "rubric_wanted": 1.0, "rubric_unwanted": 0.0}
    assert best.note == "judged"


def test_the_judge_is_shown_question_answer_and_evidence_with_its_ids_and_equal_answers_once() -> None:
    judge = Told(says_so)
    scored(reward_by(judge), episode(BORN), episode(BORN))
    assert judge.asked == [
        Case(question=TASK.question, evidence=OUTPUT, claim=BORN, criterion=criterion)
        for criterion in (TOWN.description, SEA.description)
    ]
    blind = Told(says_so)
    scored(reward_by(blind, sees_evidence=False), episode(BORN))
    assert {case.evidence for case in blind.asked} == {""}


def test_a_searcher_is_judged_by_the_passages_that_it_was_shown() -> None:
    judge = Told(says_so)
    found = Action(kind="search", text="Ada", passages=EVIDENCE.snippets)
    searched = Trajectory(
        segments=(
            Segment(author="template", tokens=(), text="?"),
            Segment(author="policy", tokens=(), text="<search>Ada</search>"),
            Segment(author="env", tokens=(), text="<information>Ada Voss was born in Tarn in</information>"),
            Segment(author="policy", tokens=(), text="<answer>Tarn</answer>"),
        ),
        actions=(found, Action(kind="answer", text="Tarn")),
    )
    task = replace(TASK, evidence=None)
    [score] = scored(RubricReward(DIALECTS["sleuth"], judge), Episode(task=task, sample=0, trajectories=(searched,)))
    assert score.value == 1.0
    assert judge.asked[0].evidence == (
        "[1.1] Ada Voss was born in Tarn in\n\n[1] Ada Voss was born in Tarn in"  # cut as it was shown
    )


@pytest.mark.parametrize("answer", [None, "", "  ", "<snippet id=a1></snippet>", "<snippet id=a1>...</snippet>"])
def test_no_answer_is_worth_nothing_by_any_aggregation_and_nobody_is_asked(answer: str | None) -> None:
    judge = Told(lambda criterion, answer: 0.0)
    for aggregation in AGGREGATIONS:
        [score] = scored(reward_by(judge, aggregation=aggregation), episode(answer))
        assert score.value == 0.0
        assert score.note in ("no_answer", "malformed")
    assert judge.asked == []


def test_an_abstention_is_paid_for_the_faults_it_lacks_only_where_nothing_answers() -> None:
    judge = Told(lambda criterion, answer: 0.0)
    for answerable, worth in ((False, 0.5), (True, 0.0), (None, 0.0)):
        task = replace(TASK, evidence=replace(EVIDENCE, answerable=answerable))
        assert scored(reward_by(judge), episode(ABSTAINS, task))[0].value == worth


def test_one_missing_verdict_makes_a_missing_score_and_leaves_the_siblings() -> None:
    judge = Told(lambda criterion, answer: None if criterion == SEA.description and "dunes" in answer else 1.0)
    lacking, whole = scored(reward_by(judge), episode("In Tarn, in the dunes."), episode("In Tarn."))
    assert (lacking.value, lacking.note) == (None, "the judge gave no verdict: timed out")
    assert whole.value == 0.5  # wanted and unwanted both fulfilled


def test_static_criteria_are_told_by_their_names_behind_the_tasks_own() -> None:
    judge = Told(lambda criterion, answer: 1.0)
    [score] = scored(reward_by(judge, static="refiner"), episode(BORN))
    assert [case.criterion for case in judge.asked] == [
        TOWN.description,
        SEA.description,
        *(rubric.description for rubric in REFINER),
    ]
    assert score.value == 2 / 5  # two wanted, three flipped
    assert score.parts["citation_discipline"] == score.parts["off_query_padding"] == 1.0
    assert "birthplace" not in score.parts
    [alone] = scored(reward_by(Told(lambda c, a: 1.0), own=False, static="refiner"), episode(BORN))
    assert alone.value == pytest.approx(1 / 3)


def test_all_criteria_in_one_call_are_worth_the_same() -> None:
    judge = Told(says_so)
    apart = scored(reward_by(judge), episode("Tarn, by the sea."), episode(BORN))
    assert scored(reward_by(None, judge), episode("Tarn, by the sea."), episode(BORN)) == apart
    assert [sheet.criteria for sheet in judge.sheets] == [(TOWN.description, SEA.description)] * 2


MIXED: Graded = [(True, 1.0), (True, 0.5), (False, 0.5), (False, 0.0)]
BAD: Graded = [(True, 0.0), (False, 1.0), (False, 1.0)]
SILENT: Graded = [(True, 0.0), (False, 0.0), (False, 0.0)]


@pytest.mark.parametrize(
    ("graded", "answers", "flipped", "positive", "absolute"),
    [
        ([(True, 1.0), (False, 0.0)], True, 1.0, 1.0, 0.5),  # a perfect answer
        (MIXED, True, (1 + 0.5 + 0.5 + 1) / 4, (1 + 0.5 - 0.5 - 0) / 2, (1 + 0.5 - 0.5 - 0) / 4),
        (BAD, True, 0.0, -2.0, -2 / 3),
        ([(False, 1.0)], True, 0.0, -1.0, -1.0),  # no positive weight: over 1
        (SILENT, True, 2 / 3, 0.0, 0.0),
        (SILENT, False, 0.0, 0.0, 0.0),  # what does not answer is not paid for the faults it lacks
        ([(True, 0.5), (False, 0.0)], False, 0.25, 0.5, 0.25),  # what is wanted counts all the same
    ],
)
def test_every_aggregation_by_hand(
    graded: Graded, answers: bool, flipped: float, positive: float, absolute: float
) -> None:
    found = [aggregate(graded, answers) for aggregate in (mean_flipped, positive_weights, absolute_weights)]
    assert found == pytest.approx([flipped, positive, absolute])
