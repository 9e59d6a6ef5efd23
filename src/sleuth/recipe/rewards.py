"""What is paid for: `[[stage.reward]]`. The score of an episode is the weighted sum of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from sleuth.recipe.judges import ContinuationJudgeTable, JudgeTable, LexicalJudgeRecipe
from sleuth.recipe.strict import StrictModel, combination


class _PartRecipe(StrictModel):
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""
    shuffle: bool = False
    """Control arm: the scores are permuted within the step, so that they say nothing about their episodes."""


class WatchRecipe(StrictModel):
    """A second judge that pays nothing: what it says of a share of what the first judges, tells whether that can still
    be trusted."""

    judge: JudgeTable
    """Another model than the one that pays, or another way of judging."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Of the groups of episodes, the share that both judge."""


class JudgedPartRecipe(_PartRecipe):
    """A reward that asks a judge."""

    kind: Any
    """Each such reward says its own."""
    judge: JudgeTable = LexicalJudgeRecipe()
    """Who decides. "lexical" compares names, dates, numbers, words and denials on this machine; the tables of kind
    "http" and "nli" name a model."""
    watch: WatchRecipe | None = None
    """Who watches the judge; absent: nobody."""

    @combination
    def _another_watches(self) -> Iterator[str]:
        if self.watch is not None and self.watch.judge == self.judge:
            yield "watch.judge is the judge that pays; name another one"


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

    @combination
    def _sum_fits(self) -> Iterator[str]:
        if self.sum == "recommended" and not self.format_gate:
            yield 'format_gate = false: sum = "recommended" is nothing without its gate; take "convex"'
        if self.sum != "recommended" and self.padding_penalty:
            yield (f'padding_penalty = {self.padding_penalty} has no part in sum = "{self.sum}"; leave it out')


class RubricRecipe(JudgedPartRecipe):
    """How far the answer fulfils criteria that are written down."""

    kind: Literal["rubric"]
    own: bool = True
    """Judge by the criteria that the question brings, in its row's `rubrics`."""
    static: Literal["none", "refiner"] = "none"
    """Judge by some that all answers share, too: "refiner" are the published refiners' three, by their names (citation
    discipline, off-query padding, wrong-entity confabulation), in our words."""
    aggregation: Literal["mean_flipped", "positive_weights", "absolute_weights"] = "mean_flipped"
    """The mean, where 1 - s counts of what is not wanted; or the sum, where -s does, over the number of what is wanted
    (arXiv:2511.19399), or over the number of all."""
    calls: Literal["per_rubric", "per_answer"] = "per_rubric"
    """Ask by one criterion at a time, or by all of them in one call."""
    sees_evidence: bool = True
    """Show the judge what the answer was written from. The published one saw the answer alone, so that it could not
    tell whether a citation holds."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability with which a criterion is left out of a group's scores (arXiv:2608.11669)."""

    @combination
    def _judge_can(self) -> Iterator[str]:
        if not self.own and self.static == "none":
            yield 'static is missing: own = false leaves no criterion; take static = "refiner"'
        for judge in (self.judge, *([self.watch.judge] if self.watch else [])):
            if self.static != "none" and judge.kind != "http":
                yield (
                    f'static = "{self.static}" needs judges of kind "http": kind = "{judge.kind}" only tells whether '
                    "an answer makes a statement"
                )
        if self.calls == "per_answer" and self.judge.kind != "http":
            yield f'calls = "per_answer" has no effect on kind = "{self.judge.kind}", which makes none'


class SuffixRecipe(_PartRecipe):
    """1 where what was written behind a thought comes to what the text itself says there, in the eyes of a judge who
    never sees the thought (arXiv:2601.21343)."""

    kind: Literal["suffix"]
    judge: ContinuationJudgeTable
    """Who decides: a table of kind "http" names a model, "ending" knows the right ending of world texts."""


class GainRecipe(_PartRecipe):
    """How much likelier a thought makes the true suffix than an empty thought does, in nats a token. No judge."""

    kind: Literal["gain"]
    scorer: Literal["frozen", "moving"] = "frozen"
    """To whom: the weights that the stage began with, or a mean of all that came since, which follows slowly
    (arXiv:2510.01265). Never to the policy itself, which would learn the suffix and not to think."""
    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of a moving scorer, the share that stays at each step; absent: 0.999."""
    clip: PositiveFloat | None = 2.0
    """Nats a token beyond which a gain counts no further, in either direction."""
    floor: Annotated[float, Field(le=0)] | None = None
    """The least that a gain is paid. With 0 a thought that harms is paid what an empty one is, so that thinking of
    nothing is no way out while most thoughts are still wrong; absent: only `clip` bounds it."""

    @combination
    def _decay_moves(self) -> Iterator[str]:
        if self.scorer == "frozen" and self.decay is not None:
            yield f'decay = {self.decay} has no effect with scorer = "frozen"; leave it out'
        if self.floor is not None and self.clip is not None and self.floor <= -self.clip:
            yield f"floor = {self.floor:g} has no effect with clip = {self.clip:g}; leave it out"


RewardRecipe = (
    AnswerRewardRecipe
    | SubMatchRecipe
    | TokenF1Recipe
    | FormatRecipe
    | SearchedRecipe
    | EvidenceInResultsRecipe
    | AnswerFromEvidenceRecipe
    | CitationRecipe
    | RubricRecipe
    | SuffixRecipe
    | GainRecipe
)
RewardTable = Annotated[RewardRecipe, Field(discriminator="kind")]
"""One `[[stage.reward]]`."""
