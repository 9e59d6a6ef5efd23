"""What is paid for: `[[stage.reward]]`. The score of an episode is the weighted sum of all of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from sleuth.recipe.judges import JudgeTable, LexicalJudgeRecipe
from sleuth.recipe.strict import StrictModel


class _PartRecipe(StrictModel):
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""
    shuffle: bool = False
    """Control arm: the scores are permuted within the step, so that they say nothing about their episodes."""


class JudgedPartRecipe(_PartRecipe):
    """A reward that asks a judge."""

    judge: JudgeTable = LexicalJudgeRecipe()
    """Who decides. "lexical" compares names, dates, numbers, words and denials on this machine; the tables of kind
    "http" and "nli" name a model."""


class AnswerRewardRecipe(_PartRecipe):
    """1 for a golden answer, 0 for another one, or what a published scorer makes of the episode."""

    kind: Literal["answer"]
    scorer: Literal["strict", "search_r1", "search_r1_format", "slime", "verl", "skyrl", "research", "tinker"] = (
        "strict"
    )
    """How the answer is read off the trajectory: "strict" reads policy-written text alone; the others behave as their
    sources do, quirks included. Strict exact match is logged beside whichever is paid."""


class SubMatchRecipe(_PartRecipe):
    """1 for an answer that holds a golden one."""

    kind: Literal["sub_match"]


class TokenF1Recipe(_PartRecipe):
    """The F1 of the words that the answer shares with a golden one."""

    kind: Literal["token_f1"]


class FormatRecipe(_PartRecipe):
    """1 for a transcript in which every turn is one closed thought and one action, the answer last."""

    kind: Literal["format"]


class SearchedRecipe(_PartRecipe):
    """1 for an episode that searched."""

    kind: Literal["searched"]


class EvidenceInResultsRecipe(_PartRecipe):
    """1 where a golden answer stands in a passage that the environment supplied."""

    kind: Literal["evidence_in_results"]


class AnswerFromEvidenceRecipe(_PartRecipe):
    """1 where the given answer stands in a passage that the environment supplied."""

    kind: Literal["answer_from_evidence"]


NAMED_SUMS: dict[str, dict[str, Any]] = {
    "recommended": {"citation_weight": 0.4, "format_gate": True, "padding_penalty": 0.1},
    "additive": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
    "convex": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
}
"""What each sum takes where nothing is said: ours, and the two readings of the published cards, whose citation weight
is 0.2 or 0.5 (S2 and S4)."""


class CitationRecipe(JudgedPartRecipe):
    """Whether every claim of the answer has a source, and what content and citations are worth together."""

    kind: Literal["citation"]
    sum: Literal["recommended", "additive", "convex"] = "recommended"
    """A gate times a mix of content and citations, less a penalty for padding; or, as the published refiners may have
    it, content + weight x citations, or (1 - weight) x content + weight x citations."""
    formula: Literal["f1", "dr_tulu"] = "f1"
    """What stands for the citations: F1, with the precision that leaves each citation out (arXiv:2305.14627), or
    0.6 F1 with the precision of all of them together + 0.4 of ids that exist (arXiv:2511.19399)."""
    content: Literal["grounded", "none"] = "grounded"
    """What stands for the content: whether a supported claim holds a golden answer, or, where no answer is known,
    nothing: then the citations stand in for it."""
    citation_weight: Annotated[float, Field(ge=0, le=1)]
    """The citations' weight in the sum; absent: 0.4 of ours, 0.2 of the published ones."""
    format_gate: bool
    """Content is paid only in a well-formed transcript; absent: in ours, which gates the citations too."""
    padding_penalty: NonNegativeFloat
    """What an answer of nothing but uncited words loses; absent: 0.1 in ours."""
    verification_reward: PositiveFloat = 1.0
    """Multiplies the sum; the published refiners have 10."""
    non_stop_penalty: bool = False
    """Pay nothing for an answer that the token budget cut off."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        named = NAMED_SUMS.get(str(table.get("sum", "recommended")), {}) if isinstance(table, dict) else {}
        return named | table if named else table

    @model_validator(mode="after")
    def _sum_fits(self) -> Self:
        if self.sum == "recommended" and not self.format_gate:
            raise ValueError('format_gate = false: sum = "recommended" is nothing without its gate; take "convex"')
        if self.sum != "recommended" and self.padding_penalty:
            raise ValueError(
                f'padding_penalty = {self.padding_penalty} has no part in sum = "{self.sum}"; leave it out'
            )
        return self


RewardRecipe = (
    AnswerRewardRecipe
    | SubMatchRecipe
    | TokenF1Recipe
    | FormatRecipe
    | SearchedRecipe
    | EvidenceInResultsRecipe
    | AnswerFromEvidenceRecipe
    | CitationRecipe
)
RewardTable = Annotated[RewardRecipe, Field(discriminator="kind")]
"""One `[[stage.reward]]`."""
