"""The citation reward: every claim of an answer judged against its citations; and its table in recipes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from sleuth.answers.match import appears_in
from sleuth.answers.tables import well_formed
from sleuth.cite.claims import ParsedAnswer, parse_answer
from sleuth.cite.measure import MAX_SHEET, Citations, measure, measure_against_table, sheets_of
from sleuth.dialect import Dialect
from sleuth.judges import verdicts_on
from sleuth.recipe.envs import EpisodeKind
from sleuth.recipe.rewards import AnswerSize, JudgedPartRecipe, RewardInputs
from sleuth.recipe.strict import combination
from sleuth.types import (
    Case,
    Group,
    Judge,
    Score,
    SheetJudge,
    SleuthError,
    StepFigure,
    Task,
    Verdict,
    failed_score,
)

NAMED_SUMS: dict[str, dict[str, Any]] = {
    "recommended": {"citation_weight": 0.4, "format_gate": True, "padding_penalty": 0.1},
    "additive": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
    "convex": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
}
"""Defaults of each `sum`: Sleuth's own, and the two readings of the published model cards, whose citation weight is 0.2
or 0.5 (S2 and S4)."""


class CitationRecipe(JudgedPartRecipe):
    """Whether the sources support every claim of the answer, combined with its content."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    methods: ClassVar[tuple[str, ...]] = ("dr_tulu",)
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure("abstained", "Share of answers that say that the evidence has no answer."),
    )
    """The others are rows of `sleuth.cite.figures`."""
    judged_parts: ClassVar[tuple[str, ...]] = ("citation_recall", "citation_precision", "citation_f1", "grounded")
    version: ClassVar[int] = 2
    kind: Literal["citation"]
    sum: Literal["recommended", "additive", "convex"] = "recommended"
    """How content and citations are combined. "additive": content + weight x citations; "convex": (1 - weight) x
    content + weight x citations (the two readings of the published refiners); "recommended": the convex sum, times a
    gate (well-formed, cites only ids that exist) and a factor for brevity, less a penalty for padding."""
    formula: Literal["f1", "dr_tulu"] = "f1"
    """Score of the citations. "f1": F1 with leave-one-out precision (arXiv:2305.14627); "dr_tulu": 0.6 x F1 with the
    precision of all citations together + 0.4 x share of citations whose ids exist (arXiv:2511.19399)."""
    content: Literal["grounded", "none"] = "grounded"
    """Score of the content. "grounded": 1 if a supported claim contains a golden answer, where one is known; "none":
    no content score. Without a content score that of the citations takes its place."""
    citation_weight: Annotated[float, Field(ge=0, le=1)]
    """Weight of the citations in the sum; absent: 0.4 with sum = "recommended", 0.2 with the others."""
    format_gate: bool
    """Whether content scores only in a well-formed transcript; absent: true with sum = "recommended", where the gate
    covers the citations too, and false with the others."""
    padding_penalty: NonNegativeFloat
    """Subtracted in proportion to the share of uncited words; absent: 0.1 with sum = "recommended", else 0."""
    calls: Literal["per_claim", "per_answer", "per_answer_or_claim"] = "per_claim"
    """Judge calls: one for each claim, and two more for each of its citations if it has several; or one for all of
    these questions about an answer, if there are at most 16. "per_answer_or_claim": one for all, and single ones where
    it gave no verdicts."""
    verification_reward: PositiveFloat = 1.0
    """Multiplies the sum; 10 in the published refiners."""
    non_stop_penalty: bool = False
    """Scores 0 for an answer that the token budget cut off."""

    def build(self, inputs: RewardInputs) -> CitationReward:
        single, sheets = self.judges_of(inputs)
        return CitationReward(inputs.dialect, single, self, sheet_judge=sheets)

    def require_gradable(self, tasks: Sequence[Task]) -> None:
        for task in tasks if self.content == "grounded" else ():
            if not task.golden_answers and (task.evidence is None or task.evidence.answerable is not False):
                raise SleuthError(
                    f"question {task.id!r} has no golden answers, so that an answer cannot be judged right or wrong: "
                    'set content = "none" in the citation reward, and citations alone are paid'
                )

    def cases(self, size: AnswerSize) -> tuple[int, bool]:
        return math.ceil(size.cited / MAX_SHEET) if self.asks_sheets else size.cited, True

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        named = NAMED_SUMS.get(str(table.get("sum", "recommended")), {}) if isinstance(table, dict) else {}
        return named | table if named else table

    @combination
    def _sum_fits(self) -> Iterator[str]:
        if self.sum == "recommended" and not self.format_gate:
            yield 'format_gate = false does not fit sum = "recommended", which includes the gate; set sum = "convex"'
        if self.sum != "recommended" and self.padding_penalty:
            yield f'padding_penalty = {self.padding_penalty} has no effect with sum = "{self.sum}"; remove it'


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerms:
    """The terms of one answer's reward. `content` is None if nothing judges it; `finished` is false if the token budget
    cut the answer; `well_formed` is true for one closed answer and nothing else but the thought that the dialect asks
    for; `valid` is true if it abstains, or cites at least one id and only ids that exist; `brevity`: see `brevity_of`.
    """

    content: float | None
    citation: float
    padding: float
    well_formed: bool
    valid: bool
    finished: bool
    brevity: float = 1.0


def reward_sum(recipe: CitationRecipe, terms: RewardTerms) -> float:
    """The reward of an answer, by the `sum` of the recipe.

    The published cards name the parts and their weights, not the sum: `additive` and `convex` are the two that fit. An
    additive citation term counts as much beside a wrong answer as beside a right one, so that a group in which only the
    citations vary is trained as hard as one in which the answers do; a convex one bounds that. Both reward form alone.

    Our `recommended` scores 0 or less unless a well-formed answer cites only existing ids, so that guessing ids never
    pays; brevity lowers the score of long copies of the evidence; 0.6 of the rest is content, because citing well what
    was not asked is no answer; and filler costs up to 0.1: never free, and never enough to cut an answer short.
    """
    if recipe.non_stop_penalty and not terms.finished:
        return 0.0
    content, weight = terms.citation if terms.content is None else terms.content, recipe.citation_weight
    if recipe.format_gate and not terms.well_formed:
        content = 0.0
    if recipe.sum == "additive":
        return recipe.verification_reward * (content + weight * terms.citation)
    convex = (1 - weight) * content + weight * terms.citation
    if recipe.sum == "convex":
        return recipe.verification_reward * convex
    gate = float(terms.well_formed and terms.valid)
    return recipe.verification_reward * (gate * terms.brevity * convex - recipe.padding_penalty * terms.padding)


MIN_BRIEF_WORDS = 30
"""Answers of at most so many words count as brief, however short their evidence is."""


def brevity_of(words: int, evidence_words: int) -> float:
    """min(1, allowed words / words); allowed is half the number of evidence words, at least `MIN_BRIEF_WORDS`."""
    return min(1.0, max(MIN_BRIEF_WORDS, evidence_words / 2) / max(words, 1))


class CitationReward:
    """`reward_sum` of every episode's answer, from verdicts on its claims, requested once per group. Missing if any
    needed verdict is.

    A `judge` rates one case per call; a `sheet_judge` instead rates an answer's cases in one call (several if there are
    more than `MAX_SHEET`), and a `judge` beside it those of a sheet without verdicts.

    An abstention is an answer without claims that says so. It is right if the data says that nothing answers the
    question: then content and citations count as 1. Otherwise both are 0.

    Parts: `citation_recall`, `citation_precision`, `citation_f1`, `citation_precision_concatenated` and `valid_ids` (0
    for an answer without claims, left out for a right abstention), `claims`, `padding`, `abstained`,
    `right_abstention` (of questions without an answer), `well_formed`, `invented_ids` if it cites any, `grounded` if
    the task has golden answers or is unanswerable. If the data has an exact table of what its snippets state, the
    figures against it are logged and not rewarded: `claim_precision`, `claim_recall`, `claim_f1` and `off_query`. The
    note is `cited`, `abstained`, `uncited`, or why there was no answer.
    """

    def __init__(
        self,
        dialect: Dialect,
        judge: Judge | None = None,
        recipe: CitationRecipe | None = None,
        *,
        sheet_judge: SheetJudge | None = None,
    ) -> None:
        self.dialect = dialect
        self.judge = judge
        self.sheet_judge = sheet_judge
        self.recipe = recipe or CitationRecipe.model_validate({"kind": "citation"})

    async def __call__(self, group: Group) -> list[Score]:
        answers = [parse_answer(episode, self.dialect) for episode in group.episodes]
        sheets = [sheets_of(answer.cited, answer.evidence) for answer in answers]
        distinct = list(dict.fromkeys(chain.from_iterable(sheets)))
        verdicts = dict(zip(distinct, await verdicts_on(distinct, self.judge, self.sheet_judge), strict=True))
        return [
            self._score(
                answer,
                {case: verdict for sheet in own for case, verdict in zip(sheet.cases, verdicts[sheet], strict=True)},
            )
            for answer, own in zip(answers, sheets, strict=True)
        ]

    def _score(self, answer: ParsedAnswer, verdicts: Mapping[Case, Verdict]) -> Score:
        if (failed := failed_score(answer.episode)) is not None:
            return failed
        known = {case: verdict.score for case, verdict in verdicts.items() if verdict.score is not None}
        if len(known) < len(verdicts):
            reason = next(verdict.reason for verdict in verdicts.values() if verdict.score is None)
            return Score(value=None, note=f"the judge gave no verdict: {reason}")
        citations = measure(answer.cited, answer.evidence, known)
        parts = _parts(answer, citations) | {"well_formed": well_formed(answer.episode, self.dialect)}
        return Score(
            value=reward_sum(self.recipe, self._terms(answer, citations, parts)), parts=parts, note=_note(answer)
        )

    def _terms(self, answer: ParsedAnswer, citations: Citations, parts: Mapping[str, float]) -> RewardTerms:
        citation = citations.f1 if self.recipe.formula == "f1" else citations.published
        return RewardTerms(
            content=parts.get("grounded") if self.recipe.content == "grounded" else None,
            citation=1.0 if answer.unanswerable and answer.abstained else citation,
            padding=parts["padding"],
            well_formed=bool(parts["well_formed"]),
            valid=answer.abstained or (citations.claims > 0 and citations.valid_ids == 1),
            finished=answer.episode.trajectory.stop != "length",
            brevity=brevity_of(answer.cited.words, sum(len(text.split()) for text in answer.evidence.values())),
        )


def _parts(answer: ParsedAnswer, citations: Citations) -> dict[str, float]:
    parts = {
        "claims": float(citations.claims),
        "padding": 0.0 if answer.abstained else answer.cited.padding,
        "abstained": float(answer.abstained),
    }
    if not (answer.unanswerable and answer.abstained):
        parts |= {
            "citation_recall": citations.recall,
            "citation_precision": citations.precision,
            "citation_f1": citations.f1,
            "citation_precision_concatenated": citations.precision_concatenated,
            "valid_ids": citations.valid_ids,
        }
    if citations.claims:
        parts["invented_ids"] = 1 - citations.valid_ids
    golden, evidence = answer.episode.task.golden_answers, answer.episode.task.evidence
    if answer.unanswerable:
        parts["right_abstention"] = parts["grounded"] = float(answer.abstained)
    elif golden:
        parts["grounded"] = float(any(appears_in(text, one.text) for one in citations.supported for text in golden))
    if evidence is not None and not answer.unanswerable and any(stated.asked for stated in evidence.stated):
        parts |= measure_against_table(answer.cited, evidence.stated)
    return parts


def _note(answer: ParsedAnswer) -> str:
    if answer.outcome in ("no_answer", "malformed"):
        return answer.outcome
    if answer.abstained:
        return "abstained"
    return "cited" if answer.cited.claims else "uncited"
