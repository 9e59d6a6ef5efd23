"""Judges and rewards of continuations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import read_documents
from sleuth.factories.judges import JudgePool, identity_of, require_available
from sleuth.factories.rewards import require_endings
from sleuth.factories.text import excerpts_of
from sleuth.judges.tournament import BothOrders, OneOrder
from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.preference import (
    ComparisonRecipe,
    OnlineDpoRecipe,
    PairwiseRecipe,
    PointwiseRecipe,
    PreferenceFields,
    WinRateRecipe,
)
from sleuth.rewards.function import function_reward_of
from sleuth.rewards.preference import MechanicsReward, PairwiseReward, PointwiseReward
from sleuth.rewards.total import TotalReward
from sleuth.runs.protocol import RewardPart, RewardSpec
from sleuth.types import PairJudge, Reward, SleuthError, Task

ORDERS = {"both": BothOrders, "one": OneOrder}
PAIRWISE_VERSION, POINTWISE_VERSION, MECHANICS_VERSION = 1, 1, 1
"""Increased whenever the same candidates could get another score."""


def pair_judge_of(recipe: ComparisonRecipe, judge_pool: JudgePool) -> PairJudge:
    """The judge that compares two continuations, in the orders of the recipe."""
    return ORDERS[recipe.orders](judge_pool.pair_judge(recipe.judge))


def shown_to(judge: JudgeFields) -> Callable[[Task], str]:
    """What a judge sees besides the texts: a judge of endings the golden answers, one a line; others nothing."""
    return (lambda task: "\n".join(task.golden_answers)) if judge.needs_endings else lambda task: ""


def preference_reward_of(rewards: Sequence[PreferenceFields], judge_pool: JudgePool) -> Reward:
    """The weighted sum of the rewards of candidates."""
    made = [PREFERENCE_KINDS[reward.kind].make(reward, judge_pool) for reward in rewards]
    return TotalReward(made, [reward.weight for reward in rewards])


def preference_spec_of(rewards: Sequence[PreferenceFields]) -> RewardSpec:
    """The record of `preference_reward_of` that checkpoints carry."""
    return RewardSpec(
        parts=tuple(
            RewardPart(kind=reward.kind, weight=reward.weight, **PREFERENCE_KINDS[reward.kind].record(reward))
            for reward in rewards
        )
    )


def require_pools(
    stage: OnlineDpoRecipe | WinRateRecipe, tokenizer: PreTrainedTokenizerFast | None, positions: int
) -> list[Task]:
    """The texts of a stage. Raises SleuthError if a model with these positions cannot continue them, or they cannot be
    judged. Without a tokenizer only the first document is read, and there are no tasks."""
    window = stage.data.prefix_tokens + stage.data.suffix_tokens
    if window > positions:
        raise SleuthError(
            f"data.prefix_tokens and data.suffix_tokens are {window} together, more than the {positions} positions of "
            "the model"
        )
    for judge in stage.judges():
        require_available(judge)
    if tokenizer is None:
        next(read_documents(stage.data.texts), None)
        return []
    tasks = excerpts_of(stage.data, tokenizer).tasks
    require_endings(stage.judges(), tasks)
    return tasks


class PreferenceKind(NamedTuple):
    """A kind of reward of candidates: `make` returns the reward of its recipe, `record` its scorer, version and sources
    for checkpoints."""

    make: Callable[[Any, JudgePool], Reward]
    record: Callable[[Any], dict[str, Any]]


def _make_pairwise(reward: PairwiseRecipe, judge_pool: JudgePool) -> Reward:
    judge = pair_judge_of(reward, judge_pool)
    return PairwiseReward(judge, schedule=reward.schedule, evidence_of=shown_to(reward.judge))


def _record_pairwise(reward: PairwiseRecipe) -> dict[str, Any]:
    scorer = f"{identity_of(reward.judge)}, {reward.schedule}, orders={reward.orders}"
    return {"scorer": scorer, "scorer_version": PAIRWISE_VERSION}


def _record_pointwise(reward: PointwiseRecipe) -> dict[str, Any]:
    return {"scorer": f"{identity_of(reward.judge)}, {reward.dimension}", "scorer_version": POINTWISE_VERSION}


PREFERENCE_KINDS: dict[str, PreferenceKind] = {
    "pairwise": PreferenceKind(_make_pairwise, _record_pairwise),
    "pointwise": PreferenceKind(
        lambda reward, judge_pool: PointwiseReward(judge_pool.judge(reward.judge), reward.dimension), _record_pointwise
    ),
    "mechanics": PreferenceKind(
        lambda reward, judge_pool: MechanicsReward(),
        lambda reward: {"scorer": "rules", "scorer_version": MECHANICS_VERSION},
    ),
    "python": PreferenceKind(
        lambda reward, judge_pool: function_reward_of(reward), lambda reward: reward.record(identity_of)
    ),
}
"""By `kind` of `[[stage.reward]]` of an `online_dpo` stage."""
