"""The rubric reward: every answer judged by its task's own criteria, by static ones for all tasks, or by both."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.answers.answer import given_answer
from sleuth.cite.claims import TAG
from sleuth.cite.evidence import abstains, citable, read_answer
from sleuth.dialect import Dialect
from sleuth.judges import verdicts_on
from sleuth.types import Episode, Group, Judge, Rubric, Score, Sheet, SheetJudge, Task, Verdict, failed_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The criteria of an answer: those of its task, if `own`, and the `static` ones.

    `Criteria(static=STATIC["refiner"])`.
    """

    own: bool = True
    static: tuple[Rubric, ...] = ()

    def for_task(self, task: Task) -> tuple[Rubric, ...]:
        """All criteria of a task."""
        return (*(task.rubrics if self.own else ()), *self.static)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """One episode's answer as the policy wrote it between its tags; `text` is None without an answer that has a word.
    `answers` is false for an abstention, unless the data says that the question is `unanswerable`."""

    episode: Episode
    text: str | None
    outcome: str
    answers: bool
    unanswerable: bool


class RubricReward:
    """The verdicts on an answer's criteria, combined by `aggregation`. 0 without an answer (not judged); missing if any
    verdict is. An answer that fulfils nothing that is wanted is aggregated like an abstention: evasion is paid no more.

    A `judge` rates one criterion per call; a `sheet_judge` instead rates all of an answer's in one call, and a `judge`
    beside it those of a sheet without verdicts. With `sees_evidence` judges see what the answer was written from.

    Parts: `rubric`, the value; `rubric_wanted` and `rubric_unwanted`, the mean fulfilment of criteria of either kind;
    and each static criterion by its title, such as `citation_discipline`. The note is `judged`, `abstained`, or why
    there was no answer.
    """

    def __init__(
        self,
        dialect: Dialect,
        criteria: Criteria,
        judge: Judge | None = None,
        *,
        sheet_judge: SheetJudge | None = None,
        aggregation: str = "mean_flipped",
        sees_evidence: bool = True,
    ) -> None:
        self.dialect = dialect
        self.criteria = criteria
        self.judge = judge
        self.sheet_judge = sheet_judge
        self.aggregate = AGGREGATIONS[aggregation]
        self.sees_evidence = sees_evidence

    async def __call__(self, group: Group) -> list[Score]:
        rubrics = self.criteria.for_task(group.task)
        answers = [_given(episode, self.dialect) for episode in group.episodes]
        sheets = {answer.text: self._sheet(answer, rubrics) for answer in answers if answer.text is not None}
        judged = await verdicts_on([*sheets.values()], self.judge, self.sheet_judge)
        verdicts = dict(zip(sheets, judged, strict=True))
        return [self._score(answer, rubrics, verdicts.get(answer.text or "", ())) for answer in answers]

    def _sheet(self, answer: GivenAnswer, rubrics: Sequence[Rubric]) -> Sheet:
        return Sheet(
            question=answer.episode.task.question,
            answer=answer.text or "",
            evidence=_evidence(answer.episode) if self.sees_evidence else "",
            criteria=tuple(rubric.description for rubric in rubrics),
        )

    def _score(self, answer: GivenAnswer, rubrics: Sequence[Rubric], verdicts: Sequence[Verdict]) -> Score:
        if (failed := failed_score(answer.episode)) is not None:
            return failed
        if answer.text is None:
            return Score(value=0.0, parts={"rubric": 0.0}, note=answer.outcome)
        missing = next((verdict for verdict in verdicts if verdict.score is None), None)
        if missing is not None:
            return Score(value=None, note=f"the judge gave no verdict: {missing.reason}")
        graded = [(rubric, verdict.score or 0.0) for rubric, verdict in zip(rubrics, verdicts, strict=True)]
        wanted = [score for rubric, score in graded if rubric.wanted]
        answers = answer.answers and (answer.unanswerable or not wanted or max(wanted) > 0)
        value = self.aggregate([(rubric.wanted, score) for rubric, score in graded], answers)
        assert value is not None  # no verdict is missing
        return Score(value=value, parts=self._parts(graded, value), note="judged" if answer.answers else "abstained")

    def _parts(self, graded: Sequence[tuple[Rubric, float]], value: float) -> dict[str, float]:
        parts = {"rubric": value}
        for name, wanted in (("rubric_wanted", True), ("rubric_unwanted", False)):
            scores = [score for rubric, score in graded if rubric.wanted == wanted]
            if scores:
                parts[name] = fmean(scores)
        return parts | {part_name(rubric): score for rubric, score in graded if rubric in self.criteria.static}


def part_name(rubric: Rubric) -> str:
    """`citation_discipline` for the title "Citation Discipline"."""
    return re.sub(r"\W+", "_", rubric.title.lower()).strip("_")


def _given(episode: Episode, dialect: Dialect) -> GivenAnswer:
    evidence = episode.task.evidence
    unanswerable = evidence is not None and evidence.answerable is False
    text, outcome = given_answer(episode, dialect)
    if text is None or not re.search(r"\w", TAG.sub(" ", text)):
        outcome = outcome if text is None else "no_answer"
        return GivenAnswer(episode=episode, text=None, outcome=outcome, answers=False, unanswerable=unanswerable)
    abstention = not read_answer(text, episode).claims and abstains(text)
    answers = unanswerable or not abstention
    return GivenAnswer(episode=episode, text=text, outcome=outcome, answers=answers, unanswerable=unanswerable)


def _evidence(episode: Episode) -> str:
    """What the answer was written from, with the citable ids: a refiner's tool output as it was, or the shown parts of
    retrieved passages."""
    if episode.task.evidence is not None:
        return episode.task.evidence.output
    return "\n\n".join(f"[{id_}] {text}" for id_, text in citable(episode).items())


Graded = Sequence[tuple[bool, float | None]]
"""(wanted, score) for each criterion; the score is how far it is fulfilled, from 0 to 1, for a fault too."""

Aggregation = Callable[[Graded, bool], float | None]
"""(graded, answers) -> the value of an answer; None if any verdict is missing. `answers` is false for an abstention
and for an answer that fulfils nothing that is wanted.

A criterion weighs 1 if it is wanted, -1 if not. For the same criteria the three are affine functions of each other and
rank siblings alike, but a criterion that nobody fails moves them differently, and so does a weight beside another
reward."""


def mean_flipped(graded: Graded, answers: bool) -> float | None:
    """The mean, with 1 - s for unwanted criteria: from 0 to 1. As in the published refiners.

    An abstention has no faults either: without `answers` it gets 0 for their absence, or silence would score the share
    of faults among the criteria.
    """
    values = [score if wanted else absence_score(score, answers) for wanted, score in graded]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def absence_score(score: float | None, answers: bool) -> float | None:
    """The score for the absence of a fault; missing stays missing."""
    if score is None:
        return None
    return 1 - score if answers else 0.0


def positive_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over the sum of the positive weights, at least 1 (arXiv:2511.19399): below 0 where faults prevail."""
    total = _weighted_sum(graded)
    return None if total is None else total / max(1, sum(wanted for wanted, _ in graded))


def absolute_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over sum(|w|), as in open-instruct: below 1 whenever any criterion is a fault."""
    total = _weighted_sum(graded)
    return None if total is None else total / len(graded)


def _weighted_sum(graded: Graded) -> float | None:
    known = [score if wanted else -score for wanted, score in graded if score is not None]
    return sum(known) if len(known) == len(graded) else None


AGGREGATIONS: dict[str, Aggregation] = {
    "mean_flipped": mean_flipped,
    "positive_weights": positive_weights,
    "absolute_weights": absolute_weights,
}
"""By their names in recipes."""


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
