"""Rewards of thoughts: what a judge says of the suffix behind one, and how much likelier it makes the true suffix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from sleuth.recipe.envs import EnvFields, EpisodeKind
from sleuth.recipe.judges import ContinuationJudgeTable, Skill
from sleuth.recipe.rewards import Identify, RewardFields, RewardInputs
from sleuth.recipe.strict import combination
from sleuth.types import Reward, StepFigure


class SuffixRecipe(RewardFields):
    """1 if a judge, who never sees the thought, finds the suffix written after it equivalent to the true suffix
    (arXiv:2601.21343)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    methods: ClassVar[tuple[str, ...]] = ("self_improving",)
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure("suffix", "The continuation behind a thought says what the text says, by the judge."),
        StepFigure("right", "The continuation behind a thought names the right ending, where the data knows it."),
    )
    is_measured_alone: ClassVar[bool] = True
    kind: Literal["suffix"]
    judge: ContinuationJudgeTable
    """The judge: a table of kind "http" names a model; "ending" knows the right ending of world texts."""

    def build(self, inputs: RewardInputs) -> Reward:
        from sleuth.think.suffix_reward import SuffixReward, judge_of_suffixes

        return SuffixReward(*judge_of_suffixes(self.judge, inputs.judge_pool), inputs.dialect.think.close)

    def record(self, identify: Identify) -> dict[str, Any]:
        return {"scorer": identify(self.judge), "scorer_version": self.version}

    def skills(self) -> tuple[Skill, ...]:
        return ("suffixes",)

    def misfit(self, env: EnvFields) -> str | None:
        """Also why there is no suffix."""
        if (other := super().misfit(env)) is None and not getattr(env, "suffix_tokens", 0):
            return "judges the suffix written after a thought: set env.suffix_tokens, such as 128"
        return other


class GainRecipe(RewardFields):
    """Log-probability of the true suffix after the thought less that without it, in nats a token. Needs no judge."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    is_scored_late: ClassVar[bool] = True
    is_measured_alone: ClassVar[bool] = True
    kind: Literal["gain"]
    scorer: Literal["frozen", "moving", "policy"] = "frozen"
    """Weights that compute the log-probabilities: those at the start of the stage ("frozen"), or an exponential moving
    average of the policy's ("moving"), both over an empty thought. "policy" is the information gain of RLP
    (arXiv:2510.01265): the policy itself after the thought, over its moving average without a thought and its tags. It
    rises too when the policy learns the suffix by heart."""
    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of the moving average, for each step; absent: 0.999. Not with scorer = "frozen"."""
    clip: PositiveFloat | None = 2.0
    """The gain is clipped to [-clip, clip], in nats a token."""
    floor: Annotated[float, Field(le=0)] | None = None
    """Lower bound of the gain; absent: -clip. With 0, harmful thoughts score as much as empty ones, so that the policy
    has no reason to prefer empty thoughts while most of its thoughts are still wrong."""

    def build(self, inputs: RewardInputs) -> None:
        """`sleuth.think.thought_gain` adds it."""

    def record(self, identify: Identify) -> dict[str, Any]:
        scorer = f"{self.scorer}, clip={self.clip}, floor={self.floor}, decay={self.decay}"
        return {"scorer": scorer, "scorer_version": self.version}

    @property
    def highest(self) -> None:
        """No thought is right or wrong."""

    @combination
    def _decay_and_floor_have_effect(self) -> Iterator[str]:
        if self.scorer == "frozen" and self.decay is not None:
            yield f'decay = {self.decay} has no effect with scorer = "frozen"; remove it'
        if self.floor is not None and self.clip is not None and self.floor <= -self.clip:
            yield f"floor = {self.floor:g} has no effect with clip = {self.clip:g}; remove it"
