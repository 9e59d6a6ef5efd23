"""The rubric reward: every answer judged by its task's own criteria, by static ones for all tasks, or by both; and its
table in recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import ClassVar, Literal

from sleuth.cite.claims import TAG, ParsedAnswer, parse_answer
from sleuth.dialect import Dialect
from sleuth.judges import verdicts_on
from sleuth.recipe.envs import EpisodeKind
from sleuth.recipe.judges import UNSEEN, Skill
from sleuth.recipe.rewards import AnswerSize, JudgedPartRecipe, RewardInputs
from sleuth.recipe.strict import combination
from sleuth.types import (
    Group,
    Judge,
    Rubric,
    Score,
    Sheet,
    SheetJudge,
    SleuthError,
    StepFigure,
    Task,
    Verdict,
    failed_score,
)

REFINER = (
    Rubric(
        title="Citation Discipline",
        description="Every fact that the answer tells stands in a tag which names a snippet of the evidence, and that "
        "snippet tells the same fact.",
    ),
    Rubric(
        title="Off-Query Padding",
        description="The answer tells what the question does not ask for, says the same twice, or holds sentences that "
        "tell nothing.",
        wanted=False,
    ),
    Rubric(
        title="Wrong-Entity Confabulation",
        description="The answer says of a person, place, work or organisation what the evidence says of another one, "
        "such as a namesake, or of none.",
        wanted=False,
    ),
)
"""The published refiners' card gives these titles. Their wording, and that the first is wanted, are ours: neither was
published."""

STATIC: dict[str, tuple[Rubric, ...]] = {"none": (), "refiner": REFINER}
"""By their names in recipes."""


class RubricRecipe(JudgedPartRecipe):
    """How far the answer fulfils written criteria."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    methods: ClassVar[tuple[str, ...]] = ("dr_tulu",)
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure("rubric", "Score of the criteria, by the reward's `aggregation`."),
        StepFigure("rubric_wanted", "Mean fulfilment of the wanted criteria."),
        StepFigure("rubric_unwanted", "Mean fulfilment of the criteria that describe faults."),
        StepFigure("citation_discipline", "Fulfilment of the published refiners' criterion of that name."),
        StepFigure("off_query_padding", "Likewise."),
        StepFigure("wrong_entity_confabulation", "Likewise."),
    )
    judged_parts: ClassVar[tuple[str, ...]] = tuple(figure.name for figure in figures[1:])
    version: ClassVar[int] = 2
    kind: Literal["rubric"]
    own: bool = True
    """Whether to judge by the question's own criteria (`rubrics` of its row)."""
    static: Literal["none", "refiner"] = "none"
    """Criteria for all answers. "refiner": the three of the published refiners (citation discipline, off-query padding,
    wrong-entity confabulation), in Sleuth's wording."""
    aggregation: Literal["mean_flipped", "positive_weights", "absolute_weights"] = "mean_flipped"
    """How criterion scores s become one. "mean_flipped": their mean, with 1 - s for faults; "positive_weights": their
    sum, with -s for faults, over the number of criteria that are not faults (arXiv:2511.19399); "absolute_weights": the
    same sum over the number of all criteria."""
    calls: Literal["per_rubric", "per_answer", "per_answer_or_rubric"] = "per_rubric"
    """Judge calls: one for each criterion, or one for all criteria of an answer. "per_answer_or_rubric": one for all,
    and single ones where it gave no verdicts."""
    sees_evidence: bool = True
    """Whether the judge sees the evidence that the answer was written from. The published judge saw the answer alone,
    and so could not check citations."""

    def criteria(self, task: Task) -> tuple[Rubric, ...]:
        """What the answers to a task are judged by."""
        return (*(task.rubrics if self.own else ()), *STATIC[self.static])

    def build(self, inputs: RewardInputs) -> RubricReward:
        single, sheets = self.judges_of(inputs)
        return RubricReward(inputs.dialect, single, self, sheet_judge=sheets)

    def require_gradable(self, tasks: Sequence[Task]) -> None:
        bare = next((task for task in tasks if not self.criteria(task)), None)
        if bare is not None:
            raise SleuthError(
                f"question {bare.id!r} has no rubrics, so that there is nothing to judge its answers by: give rows "
                'with rubrics, or set static = "refiner" in the rubric reward'
            )

    @property
    def subjects(self) -> tuple[Skill, ...]:
        subjects = [*(["criteria"] if self.own else []), *(["static_criteria"] if self.static != "none" else [])]
        return tuple(subject if self.sees_evidence else f"{subject}{UNSEEN}" for subject in subjects)

    def cases(self, size: AnswerSize) -> tuple[int, bool]:
        """Criteria; a whole sheet of them may be one call."""
        criteria = size.own * self.own + len(STATIC[self.static])
        return (1, False) if self.asks_sheets else (criteria, self.own)

    @combination
    def _judge_fits(self) -> Iterator[str]:
        if not self.own and self.static == "none":
            yield 'static is missing: own = false leaves no criterion; set static = "refiner"'
        if self.static != "none" and self.judge.kind != "http":
            yield (
                f'static = "{self.static}" needs a judge of kind "http": kind = "{self.judge.kind}" only decides '
                "whether an answer makes a statement"
            )


class RubricReward:
    """The verdicts on an answer's criteria, combined by the `aggregation` of the recipe. 0 without an answer that has a
    word (not judged); missing if any verdict is. An answer that fulfils nothing that is wanted is aggregated like an
    abstention: evasion is paid no more.

    A `judge` rates one criterion per call; a `sheet_judge` instead rates all of an answer's in one call, and a `judge`
    beside it those of a sheet without verdicts. With `sees_evidence` judges see what the answer was written from.

    Parts: `rubric`, the value; `rubric_wanted` and `rubric_unwanted`, the mean fulfilment of criteria of either kind;
    and each static criterion by its title, such as `citation_discipline`. The note is `judged`, `abstained`, or why
    there was no answer.
    """

    def __init__(
        self,
        dialect: Dialect,
        judge: Judge | None = None,
        recipe: RubricRecipe | None = None,
        *,
        sheet_judge: SheetJudge | None = None,
    ) -> None:
        self.dialect = dialect
        self.judge = judge
        self.sheet_judge = sheet_judge
        self.recipe = recipe or RubricRecipe.model_validate({"kind": "rubric"})

    async def __call__(self, group: Group) -> list[Score]:
        rubrics = self.recipe.criteria(group.task)
        answers = [parse_answer(episode, self.dialect) for episode in group.episodes]
        sheets = {answer.text: self._sheet(answer, rubrics) for answer in answers if _has_a_word(answer)}
        judged = await verdicts_on([*sheets.values()], self.judge, self.sheet_judge)
        verdicts = dict(zip(sheets, judged, strict=True))
        return [self._score(answer, rubrics, verdicts) for answer in answers]

    def _sheet(self, answer: ParsedAnswer, rubrics: Sequence[Rubric]) -> Sheet:
        return Sheet(
            question=answer.episode.task.question,
            answer=answer.text or "",
            evidence=_evidence(answer) if self.recipe.sees_evidence else "",
            criteria=tuple(rubric.description for rubric in rubrics),
        )

    def _score(
        self, answer: ParsedAnswer, rubrics: Sequence[Rubric], judged: Mapping[str | None, Sequence[Verdict]]
    ) -> Score:
        if (failed := failed_score(answer.episode)) is not None:
            return failed
        if not _has_a_word(answer):
            return Score(value=0.0, parts={"rubric": 0.0}, note=answer.outcome if answer.text is None else "no_answer")
        verdicts = judged[answer.text]
        if (missing := next((verdict for verdict in verdicts if verdict.score is None), None)) is not None:
            return Score(value=None, note=f"the judge gave no verdict: {missing.reason}")
        graded = [(rubric, verdict.score or 0.0) for rubric, verdict in zip(rubrics, verdicts, strict=True)]
        wanted = [score for rubric, score in graded if rubric.wanted]
        abstained = answer.abstained and not answer.unanswerable
        answers = not abstained and (answer.unanswerable or not wanted or max(wanted) > 0)
        aggregate = AGGREGATIONS[self.recipe.aggregation]
        parts = {"rubric": aggregate([(rubric.wanted, score) for rubric, score in graded], answers)}
        for name, scores in (
            ("rubric_wanted", wanted),
            ("rubric_unwanted", [score for rubric, score in graded if not rubric.wanted]),
        ):
            parts |= {name: fmean(scores)} if scores else {}
        parts |= {part_name(rubric): score for rubric, score in graded if rubric in STATIC[self.recipe.static]}
        return Score(value=parts["rubric"], parts=parts, note="abstained" if abstained else "judged")


def _has_a_word(answer: ParsedAnswer) -> bool:
    return answer.text is not None and re.search(r"\w", TAG.sub(" ", answer.text)) is not None


def part_name(rubric: Rubric) -> str:
    """`citation_discipline` for the title "Citation Discipline"."""
    return re.sub(r"\W+", "_", rubric.title.lower()).strip("_")


def _evidence(answer: ParsedAnswer) -> str:
    """What the answer was written from, with the citable ids: a refiner's tool output as it was, or the shown parts of
    retrieved passages."""
    if answer.episode.task.evidence is not None:
        return answer.episode.task.evidence.output
    return "\n\n".join(f"[{id_}] {text}" for id_, text in answer.evidence.items())


Graded = Sequence[tuple[bool, float]]
"""(wanted, score) for each criterion; the score is how far it is fulfilled, from 0 to 1, for a fault too."""

Aggregation = Callable[[Graded, bool], float]
"""(graded, answers) -> the value of an answer. `answers` is false for an abstention and for an answer that fulfils
nothing that is wanted.

A criterion weighs 1 if it is wanted, -1 if not. For the same criteria the three are affine functions of each other and
rank siblings alike, but a criterion that nobody fails moves them differently, and so does a weight beside another
reward."""


def mean_flipped(graded: Graded, answers: bool) -> float:
    """The mean, with 1 - s for unwanted criteria: from 0 to 1. As in the published refiners.

    An abstention has no faults either: without `answers` it gets 0 for their absence, or silence would score the share
    of faults among the criteria.
    """
    return fmean(score if wanted else (1 - score if answers else 0.0) for wanted, score in graded)


def positive_weights(graded: Graded, answers: bool) -> float:
    """sum(w s) over the sum of the positive weights, at least 1 (arXiv:2511.19399): below 0 where faults prevail."""
    return _weighted_sum(graded) / max(1, sum(wanted for wanted, _ in graded))


def absolute_weights(graded: Graded, answers: bool) -> float:
    """sum(w s) over sum(|w|), as in open-instruct: below 1 whenever any criterion is a fault."""
    return _weighted_sum(graded) / len(graded)


def _weighted_sum(graded: Graded) -> float:
    return sum(score if wanted else -score for wanted, score in graded)


AGGREGATIONS: dict[str, Aggregation] = {
    "mean_flipped": mean_flipped,
    "positive_weights": positive_weights,
    "absolute_weights": absolute_weights,
}
"""By their names in recipes."""
