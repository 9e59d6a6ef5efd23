"""Preferences between continuations: the stage that is taught by them, and the one that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.recipe.judges import ContinuationJudgeTable, HttpJudgeRecipe
from sleuth.recipe.loss import SamplingRecipe
from sleuth.recipe.strict import FilePath, Name, Row, StrictModel, combination
from sleuth.recipe.text import TextRecipe
from sleuth.recipe.training import TrainingRecipe


class ComparisonRecipe(StrictModel):
    """How two continuations of one prefix are compared."""

    judge: ContinuationJudgeTable
    """Who decides: a table of kind "http" names a model, "ending" knows the right ending of world texts."""
    orders: Literal["both", "one"] = "both"
    """Ask about each pair in both orders, and one is better where both verdicts say so (arXiv:2306.05685); or once, in
    an order that is drawn."""


class PairwiseRecipe(ComparisonRecipe):
    """The share of the others in the pool that a candidate is better than, in the eyes of a judge who sees two."""

    kind: Literal["pairwise"]
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""
    schedule: Literal["round_robin", "tournament"] = "round_robin"
    """Compare each with each, or find best and worst in as many rounds as the pool's size has binary digits."""


class PointwiseRecipe(StrictModel):
    """One dimension of a continuation, in the eyes of a judge who sees it alone."""

    kind: Literal["pointwise"]
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""
    dimension: Literal["quality", "factuality", "safety"]
    """What is judged; of factuality the judge sees how the text really goes on."""
    judge: HttpJudgeRecipe
    """Who decides."""


class MechanicsRecipe(StrictModel):
    """Rules in place of a judge: repetition, copying, names out of nowhere. They show that the machinery runs and say
    nothing of quality; the run's metrics and cards call it mechanics mode."""

    kind: Literal["mechanics"]
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""


PreferenceRecipe = PairwiseRecipe | PointwiseRecipe | MechanicsRecipe
PreferenceTable = Annotated[PreferenceRecipe, Field(discriminator="kind")]
"""One `[[stage.reward]]` of a stage that prefers."""


class PreferenceLossRecipe(StrictModel):
    """What is made of the best and the worst of a pool."""

    kind: Literal["dpo", "winner_nll", "original_nll"] = "dpo"
    """Direct preference optimisation on best against worst (arXiv:2305.18290); or a control arm: cross-entropy on the
    best alone, or on the original alone, which is continued pretraining and plays and judges nothing."""
    beta: PositiveFloat = 0.1
    """How many units of log-odds a nat of preference is worth: DPO's temperature."""


class OnlineDpoRecipe(TrainingRecipe):
    """Self-improving pretraining (arXiv:2601.21343): of the original suffix of a text, rewrites of it and the policy's
    own continuations, the best is preferred to the worst."""

    kind: Literal["online_dpo"]
    name: Name = "online_dpo"
    """What the stage is called in the run folder."""
    prompts_per_step: PositiveInt
    """Prefixes in one optimiser step."""
    samples_per_prompt: NonNegativeInt = 16
    """The policy's own continuations in a pool."""
    rewrites: FilePath | None = None
    """Rows of `id` and `rewrite`, a teacher's suffix for the text of that id; a text without one has none."""
    slots: PositiveInt = 64
    """Continuations the in-process engine writes at once; changes memory and speed."""
    stops: Row[str] = ()
    """A continuation ends behind one of these too, such as "." where texts end with their next sentence; absent: only
    at the length of a suffix, or where the model ends the text."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Above this share of pools without enough verdicts in a step the run stops and says why."""
    data: TextRecipe
    """The texts whose suffixes are compared."""
    sampling: SamplingRecipe = SamplingRecipe()
    """How continuations are sampled."""
    reward: Annotated[Row[PreferenceTable], Field(min_length=1)] = (MechanicsRecipe(kind="mechanics"),)
    """What candidates are judged by; the scores are summed. Absent: mechanics mode."""
    loss: PreferenceLossRecipe = PreferenceLossRecipe()
    """The loss on the best and the worst of a pool."""

    @combination
    def _something_to_prefer(self) -> Iterator[str]:
        if self.loss.kind != "original_nll" and self.samples_per_prompt == 0 and self.rewrites is None:
            yield (
                "samples_per_prompt = 0 leaves a pool of the original alone, and nothing to prefer: set it to 1 or "
                'more, name rewrites, or set loss.kind = "original_nll"'
            )

    @property
    def mechanics(self) -> bool:
        """Whether no judge has a part in what is preferred."""
        return self.loss.kind != "original_nll" and all(isinstance(part, MechanicsRecipe) for part in self.reward)


class WinRateRecipe(ComparisonRecipe):
    """Continuations of held-out prefixes by the model as it stands, compared with another model's: `eval/NAME.json`."""

    kind: Literal["win_rate"]
    name: Name
    """The file's name, such as "against_base"."""
    data: TextRecipe
    """The held-out texts to continue."""
    against: str | None = None
    """The other model, a folder or a hub id; absent: the one that the recipe begins with."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    slots: PositiveInt = 64
    """Continuations the in-process engine writes at once; changes memory and speed."""
    stops: Row[str] = ()
    """A continuation ends behind one of these too, such as "." where texts end with their next sentence; absent: only
    at the length of a suffix, or where the model ends the text."""
