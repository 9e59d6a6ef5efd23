"""Rewards for answers whose claims cite: the citation reward and the rubric reward; and credit for single citations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from sleuth.cite.citation_reward import CitationReward
from sleuth.cite.measure import MAX_SHEET, RewardSum
from sleuth.cite.rubric_reward import STATIC, Criteria, RubricReward
from sleuth.recipe.envs import EpisodeKind
from sleuth.recipe.grpo import CreditFields
from sleuth.recipe.judges import UNSEEN, Skill
from sleuth.recipe.rewards import AnswerSize, JudgedPartRecipe, RewardInputs
from sleuth.recipe.strict import combination
from sleuth.types import SleuthError, StepFigure, Task

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
        worth = RewardSum(
            name=self.sum,
            citation_weight=self.citation_weight,
            verification_reward=self.verification_reward,
            non_stop_penalty=self.non_stop_penalty,
            format_gate=self.format_gate,
            padding_penalty=self.padding_penalty,
        )
        single, sheets = self.judges_of(inputs)
        return CitationReward(
            inputs.dialect, single, worth, sheet_judge=sheets, formula=self.formula, content=self.content
        )

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

    @property
    def criteria(self) -> Criteria:
        """What answers are judged by."""
        return Criteria(own=self.own, static=STATIC[self.static])

    def build(self, inputs: RewardInputs) -> RubricReward:
        single, sheets = self.judges_of(inputs)
        return RubricReward(
            inputs.dialect,
            self.criteria,
            single,
            sheet_judge=sheets,
            aggregation=self.aggregation,
            sees_evidence=self.sees_evidence,
        )

    def require_gradable(self, tasks: Sequence[Task]) -> None:
        bare = next((task for task in tasks if not self.criteria.for_task(task)), None)
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


class CitationGainRecipe(CreditFields):
    """Credit for the tokens of a citing claim: by its log-probability (and that of the thought before it) with the
    cited snippet less without it; of several cited snippets, the largest gain."""

    credited: ClassVar[tuple[str, str]] = "refine", "citations"
    kind: Literal["citation_gain"]

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.cite.citation_gain import CitationCredit

        return [CitationCredit(self, inputs)]
