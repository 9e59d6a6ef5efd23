"""The tables of preferences between continuations: rewards of candidates, and `online_dpo` and `win_rate`, which train
and measure by them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.answers.function import function_reward_of
from sleuth.recipe.data import Lengths, TextRecipe
from sleuth.recipe.judges import ContinuationJudgeTable, JudgedFields, JudgeFields, Skill
from sleuth.recipe.loss import SamplingRecipe
from sleuth.recipe.rewards import AnswerSize, FunctionFields, Identify, Judges, ModelCalls, clashing_figures
from sleuth.recipe.stage import EvaluationFields, SampledRecipe
from sleuth.recipe.strict import Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe
from sleuth.types import Reward

if TYPE_CHECKING:
    from sleuth.recipe.recipe import Recipe


class ContinuedFields(StrictModel):
    """What stages that continue texts share."""

    data: TextRecipe
    """The texts, whose suffixes are continued anew and compared."""
    stops: Row[str] = ()
    """Texts that end a continuation early, such as "." where texts end with their next sentence. Otherwise it ends at
    the length of a suffix, or where the model ends the text."""

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        return Lengths.of_text(self.data.prefix_tokens, self.data.suffix_tokens)


class ComparisonRecipe(StrictModel):
    """How two continuations of one prefix are compared."""

    judge: ContinuationJudgeTable
    """The judge: a table of kind "http" names a model; "ending" knows the right ending of world texts."""
    orders: Literal["both", "one"] = "both"
    """Whether each pair is judged in both orders, where one wins only if both verdicts agree (arXiv:2306.05685), or
    once, in a random order."""

    def skills(self) -> tuple[Skill, ...]:
        """What it asks of its judge."""
        return ("continuations",)


class PreferenceFields(JudgedFields):
    """How rewards of candidates are made, and what differs between them; the defaults are those of one without a
    judge."""

    version: ClassVar[int] = 1
    """Increased whenever the same candidates could get another score under this reward."""
    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""

    @abstractmethod
    def build(self, judge_pool: Judges) -> Reward:
        """The reward."""

    @abstractmethod
    def record(self, identify: Identify) -> dict[str, Any]:
        """Its scorer, version and sources, as checkpoints carry them."""

    def calls_of_pool(self, size: int) -> int:
        """Calls of models over HTTP for a pool of so many candidates."""
        return 0


class PairwiseRecipe(ComparisonRecipe, PreferenceFields):
    """The share of the other candidates in the pool that a candidate beats, according to a judge who sees two."""

    kind: Literal["pairwise"]

    def build(self, judge_pool: Judges) -> Reward:
        from sleuth.think.comparisons import PairwiseReward, pair_judge_of, shown_to

        judge = pair_judge_of(self, judge_pool)
        return PairwiseReward(judge, evidence_of=shown_to(self.judge))

    def record(self, identify: Identify) -> dict[str, Any]:
        scorer = f"{identify(self.judge)}, round_robin, orders={self.orders}"  # as when there were other schedules
        return {"scorer": scorer, "scorer_version": self.version}

    def calls_of_pool(self, size: int) -> int:
        return size * (size - 1) // 2 * (2 if self.orders == "both" else 1)


class FunctionPreferenceRecipe(FunctionFields, PreferenceFields):
    """The number that a function of your own returns for a candidate (docs/how-to/own_code.md): an episode of two
    segments, the prefix and its continuation."""

    kind: Literal["python"]

    def build(self, judge_pool: Judges) -> Reward:
        return function_reward_of(self)


PreferenceTable = Annotated[PreferenceFields, OneOf("preferences")]
"""A `[[stage.reward]]` table of an `online_dpo` stage."""


class PreferenceLossRecipe(StrictModel):
    """The loss on the best and the worst candidate of a pool. `dpo`: direct preference optimisation (arXiv:2305.18290).
    Control arms: `winner_nll`, cross-entropy on the best alone; `original_nll`, cross-entropy on the original alone,
    which is continued pretraining and generates and judges nothing."""

    kind: Literal["dpo", "winner_nll", "original_nll"] = "dpo"
    """The loss, or a control arm."""
    beta: PositiveFloat = 0.1
    """DPO's beta: log-odds for each nat of log-probability margin."""


class OnlineDpoRecipe(ContinuedFields, SampledRecipe, TrainingRecipe):
    """Self-improving pretraining (arXiv:2601.21343): DPO on the best and the worst of a pool, which holds the original
    suffix of a text and the policy's own continuations."""

    runner: ClassVar[str] = "sleuth.think.online_dpo"
    kind: Literal["online_dpo"]
    name: Name = "online_dpo"
    """What the stage is called in the run folder."""
    prompts_per_step: PositiveInt
    """Prefixes in one optimiser step."""
    samples_per_prompt: NonNegativeInt = 16
    """Number of the policy's own continuations in a pool."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """If in a step a larger share of the pools lacks verdicts, the run stops with an error."""
    sampling: SamplingRecipe = SamplingRecipe()
    """How continuations are sampled."""
    reward: Annotated[Row[PreferenceTable], Field(min_length=1)]
    """The rewards; a candidate's score is their weighted sum."""
    loss: PreferenceLossRecipe = PreferenceLossRecipe()
    """The loss on the best and the worst candidate of a pool."""

    @combination
    def _functions_have_their_own_figures(self) -> Iterator[str]:
        yield from clashing_figures(self.reward)
        if not isinstance(self.sampling.temperature, int | float):
            yield "sampling.temperature may have a schedule in a grpo stage alone; set one number"

    @combination
    def _pool_has_candidates(self) -> Iterator[str]:
        if self.loss.kind != "original_nll" and self.samples_per_prompt == 0:
            yield (
                "samples_per_prompt = 0 leaves the original as the only candidate: set it to 1 or more, or "
                'loss.kind = "original_nll"'
            )

    @property
    def writes(self) -> Literal["continuations"]:
        return "continuations"

    @property
    def sequences_per_step(self) -> int:
        """Two of each pool."""
        return 2 * self.prompts_per_step

    @property
    def rows_at_once(self) -> int:
        return 2 if self.loss.kind == "dpo" else 1

    @property
    def played_per_step(self) -> tuple[int, int]:
        """Nothing, if only the original is trained."""
        return self.prompts_per_step, 0 if self.loss.kind == "original_nll" else self.samples_per_prompt

    @property
    def keeps_first_weights(self) -> bool:
        return self.loss.kind == "dpo"

    def trained_tokens(self, prompt: int, response: int, prompts: int) -> int:
        return self.prompts_per_step * (prompt + self.rows_at_once * response)

    @property
    def asked_rewards(self) -> tuple[PreferenceFields, ...]:
        """Those that compare candidates: none, if only the original is trained."""
        return self.reward if self.loss.kind != "original_nll" else ()

    def judges(self) -> tuple[JudgeFields, ...]:
        return tuple(judge for reward in self.asked_rewards for judge in reward.judges())

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        for reward in self.asked_rewards:
            calls = self.prompts_per_step * reward.calls_of_pool(self.samples_per_prompt + 1)
            yield from (ModelCalls(reward.kind, calls, False, judge) for judge in reward.served_judges())

    def methods(self) -> tuple[str, ...]:
        return ("self_improving",)


class WinRateRecipe(ContinuedFields, EvaluationFields, ComparisonRecipe):
    """Compares the current model's continuations of held-out prefixes with those of the recipe's `model`, in
    `eval/NAME.json`."""

    models: ClassVar[int] = 2
    runner: ClassVar[str] = "sleuth.think.win_rate"
    kind: Literal["win_rate"]
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0: greedy."""

    def skills(self) -> tuple[Skill, ...]:  # a stage has none by itself
        return ComparisonRecipe.skills(self)

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        calls = (self.asked or 0) * (2 if self.orders == "both" else 1)
        yield from (ModelCalls("pairwise", calls, False, judge) for judge in self.served_judges())

    @property
    def arms(self) -> int:
        """The current model's continuation, and the other's."""
        return 2
