"""The rubric reward: every answer judged by criteria of its own task, by some that all answers share, or by both."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.dialects import Dialect
from sleuth.rewards.answer import FAILED, given_answer
from sleuth.rewards.citation.claims import TAG
from sleuth.rewards.citation.evidence import abstains, citable, read_answer
from sleuth.types import Case, Episode, Group, Judge, Rubric, Score, Sheet, SheetJudge, Task, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which criteria an answer is judged by: those of its `task`, if `own`, and `static` ones. In each group every one
    is left out with the probability `dropout`, but for the last that is left (arXiv:2608.11669): a policy that cannot
    know which is asked for has less to gain from a judge's weakness for one.

    `Criteria(static=STATIC["refiner"], dropout=0.25)`.
    """

    own: bool = True
    static: tuple[Rubric, ...] = ()
    dropout: float = 0.0

    def of(self, task: Task) -> tuple[Rubric, ...]:
        """All of a task."""
        return (*(task.rubrics if self.own else ()), *self.static)

    def drawn(self, group: Group) -> tuple[Rubric, ...]:
        """Those that this group is judged by: the same for all siblings, who are compared with each other. The draw is
        keyed by the task and by what was written, so that a stored group is judged by the same ones again."""
        rubrics = self.of(group.task)
        written = "\0".join(episode.whole.policy_text for episode in group.episodes)
        digest = hashlib.sha256(written.encode(errors="replace")).hexdigest()
        rng = random.Random(f"rubrics {group.task.id} {digest}")
        kept = tuple(rubric for rubric in rubrics if rng.random() >= self.dropout)
        return kept or (rng.choice(rubrics),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One episode's answer, as the policy wrote it between its tags; None where there is none with a word in it.
    `answers` is false for one that says that nothing can be told, unless the data says so too."""

    episode: Episode
    text: str | None
    outcome: str
    answers: bool


class RubricReward:
    """What an answer is worth by the criteria, aggregated by `aggregation`. 0 for no answer, and nobody is asked about
    one; missing where any verdict is, for half of the criteria are other criteria.

    A `judge` is asked by one criterion at a time; a `sheet_judge`, in its place, by all of them in one call. With
    `sees_evidence` they are shown what the answer was written from.

    Parts: `rubric`, the worth; `rubric_wanted` and `rubric_unwanted`, how far criteria of either kind are fulfilled on
    average; and each of the static ones by its title, such as `citation_discipline`. The note is `judged`, `abstained`,
    or why there was no answer.
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
        rubrics = self.criteria.drawn(group)
        given = [_given(episode, self.dialect) for episode in group.episodes]
        sheets = {one.text: self._sheet(one, rubrics) for one in given if one.text is not None}
        verdicts = dict(zip(sheets, await self._verdicts([*sheets.values()]), strict=True))
        return [self._score(one, rubrics, verdicts.get(one.text or "", ())) for one in given]

    def _sheet(self, given: Given, rubrics: Sequence[Rubric]) -> Sheet:
        return Sheet(
            question=given.episode.task.question,
            answer=given.text or "",
            evidence=_evidence(given.episode) if self.sees_evidence else "",
            criteria=tuple(rubric.description for rubric in rubrics),
        )

    async def _verdicts(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """One call a sheet, or one a criterion."""
        if self.sheet_judge is not None:
            return await self.sheet_judge.rate(sheets)
        assert self.judge is not None
        cases: list[Case] = list(dict.fromkeys(case for sheet in sheets for case in sheet.cases))
        verdicts = dict(zip(cases, await self.judge.judge(cases) if cases else (), strict=True))
        return [[verdicts[case] for case in sheet.cases] for sheet in sheets]

    def _score(self, given: Given, rubrics: Sequence[Rubric], verdicts: Sequence[Verdict]) -> Score:
        if given.episode.trajectory.stop == "failed":
            return FAILED
        if given.text is None:
            return Score(value=0.0, parts={"rubric": 0.0}, note=given.outcome)
        missing = next((verdict for verdict in verdicts if verdict.score is None), None)
        if missing is not None:
            return Score(value=None, note=f"the judge gave no verdict: {missing.reason}")
        graded = [(rubric, verdict.score or 0.0) for rubric, verdict in zip(rubrics, verdicts, strict=True)]
        worth = self.aggregate([(rubric.wanted, score) for rubric, score in graded], given.answers)
        assert worth is not None  # no verdict is missing
        return Score(value=worth, parts=self._parts(graded, worth), note="judged" if given.answers else "abstained")

    def _parts(self, graded: Sequence[tuple[Rubric, float]], worth: float) -> dict[str, float]:
        parts = {"rubric": worth}
        for name, wanted in (("rubric_wanted", True), ("rubric_unwanted", False)):
            scores = [score for rubric, score in graded if rubric.wanted == wanted]
            if scores:
                parts[name] = fmean(scores)
        return parts | {part_name(rubric): score for rubric, score in graded if rubric in self.criteria.static}


def part_name(rubric: Rubric) -> str:
    """`citation_discipline` of the title "Citation Discipline"."""
    return re.sub(r"\W+", "_", rubric.title.lower()).strip("_")


def _given(episode: Episode, dialect: Dialect) -> Given:
    text, outcome = given_answer(episode, dialect)
    if text is None or not re.search(r"\w", TAG.sub(" ", text)):
        return Given(episode=episode, text=None, outcome="no_answer" if text is not None else outcome, answers=False)
    evidence = episode.task.evidence
    told = evidence is not None and evidence.answerable is False
    silent = not read_answer(text, episode).claims and abstains(text)
    return Given(episode=episode, text=text, outcome=outcome, answers=told or not silent)


def _evidence(episode: Episode) -> str:
    """What the answer was written from, with the ids that it may cite: of a refiner the tool output as it was, of a
    search what was shown of the passages."""
    if episode.task.evidence is not None:
        return episode.task.evidence.output
    return "\n\n".join(f"[{id_}] {text}" for id_, text in citable(episode).items())


# Each criterion weighs 1 if it is wanted, -1 if it is not. For the same criteria the three are affine functions of each
# other, so that they rank siblings alike; but a criterion that nobody fails moves them differently, and so does their
# weight beside another reward. None, a verdict that could not be had, makes the whole None.

Graded = Sequence[tuple[bool, float | None]]
"""(wanted, score) by each criterion; a score is how far it is fulfilled, from 0 to 1, a fault too."""

Aggregation = Callable[[Graded, bool], float | None]
"""The worth of an answer, and whether it is one that may be paid for the faults it does not have."""


def mean_flipped(graded: Graded, answers: bool) -> float | None:
    """The mean, where of what is not wanted 1 - s counts: from 0 to 1. As the published refiners have it.

    One that does not answer has no fault either: without `answers` it is paid nothing for that, or silence would be
    worth the share of faults among the criteria.
    """
    worths = [score if wanted else flipped(score, answers) for wanted, score in graded]
    known = [worth for worth in worths if worth is not None]
    return fmean(known) if len(known) == len(worths) else None


def flipped(score: float | None, answers: bool) -> float | None:
    """What the absence of a fault is worth. Missing stays missing: a judge that fails clears nobody."""
    if score is None:
        return None
    return 1 - score if answers else 0.0


def positive_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over the sum of the positive weights, at least 1 (arXiv:2511.19399): below 0 where faults prevail."""
    total = _weighted(graded)
    return None if total is None else total / max(1, sum(wanted for wanted, _ in graded))


def absolute_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over sum(|w|), as in open-instruct: cannot reach 1 where any fault is asked for."""
    total = _weighted(graded)
    return None if total is None else total / len(graded)


def _weighted(graded: Graded) -> float | None:
    known = [score if wanted else -score for wanted, score in graded if score is not None]
    return sum(known) if len(known) == len(graded) else None


AGGREGATIONS: dict[str, Aggregation] = {
    "mean_flipped": mean_flipped,
    "positive_weights": positive_weights,
    "absolute_weights": absolute_weights,
}
"""By the name that a recipe gives them."""


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
"""Under the names that the published refiners' card gives to theirs. Neither their wording nor whether the first is
wanted was published: both are ours."""

STATIC: dict[str, tuple[Rubric, ...]] = {"none": (), "refiner": REFINER}
"""By the name that a recipe gives them."""
