"""Rewards of candidates that continue a text: comparisons by a judge, one dimension, rules, and a function of one's
own."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat

from sleuth.answers.function import function_reward_of
from sleuth.judges.tables import HttpJudgeRecipe
from sleuth.recipe.judges import Skill
from sleuth.recipe.rewards import FunctionFields, Identify, Judges
from sleuth.think.preference_tables import ComparisonRecipe, PreferenceFields, rounds_of
from sleuth.types import Reward


class PairwiseRecipe(ComparisonRecipe, PreferenceFields):
    """The share of the other candidates in the pool that a candidate beats, according to a judge who sees two."""

    kind: Literal["pairwise"]
    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""
    schedule: Literal["round_robin", "tournament"] = "round_robin"
    """Compares all pairs, or finds the best and the worst in as many rounds as the pool's size has binary digits."""

    def build(self, judge_pool: Judges) -> Reward:
        from sleuth.think.preference_rewards import PairwiseReward, pair_judge_of, shown_to

        judge = pair_judge_of(self, judge_pool)
        return PairwiseReward(judge, schedule=self.schedule, evidence_of=shown_to(self.judge))

    def record(self, identify: Identify) -> dict[str, Any]:
        scorer = f"{identify(self.judge)}, {self.schedule}, orders={self.orders}"
        return {"scorer": scorer, "scorer_version": self.version}

    def calls_of_pool(self, size: int) -> int:
        pairs = size * (size - 1) // 2 if self.schedule == "round_robin" else rounds_of(size) * -(-size // 2)
        return pairs * (2 if self.orders == "both" else 1) * self.judge.is_served


class PointwiseRecipe(PreferenceFields):
    """One dimension of a continuation, according to a judge who sees one continuation at a time."""

    kind: Literal["pointwise"]
    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""
    dimension: Literal["quality", "factuality", "safety"]
    """The dimension; for factuality the judge sees the true continuation too."""
    judge: HttpJudgeRecipe
    """The judge."""

    def build(self, judge_pool: Judges) -> Reward:
        from sleuth.think.preference_rewards import PointwiseReward

        return PointwiseReward(judge_pool.judge(self.judge), self.dimension)

    def record(self, identify: Identify) -> dict[str, Any]:
        return {"scorer": f"{identify(self.judge)}, {self.dimension}", "scorer_version": self.version}

    def skills(self) -> tuple[Skill, ...]:
        return (self.dimension,)

    def calls_of_pool(self, size: int) -> int:
        return size


class MechanicsRecipe(PreferenceFields):
    """Rules instead of a judge: repetition, copying, and names that the text does not contain. They only show that the
    pipeline works and do not measure quality; the run's metrics and cards call this mechanics mode."""

    is_mechanics: ClassVar[bool] = True
    kind: Literal["mechanics"]
    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""

    def build(self, judge_pool: Judges) -> Reward:
        from sleuth.think.preference_rewards import MechanicsReward

        return MechanicsReward()

    def record(self, identify: Identify) -> dict[str, Any]:
        return {"scorer": "rules", "scorer_version": self.version}


class FunctionPreferenceRecipe(FunctionFields, PreferenceFields):
    """The number that a function of your own returns for a candidate (docs/how-to/own_code.md): an episode of two
    segments, the prefix and its continuation."""

    kind: Literal["python"]
    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""

    def build(self, judge_pool: Judges) -> Reward:
        return function_reward_of(self)
