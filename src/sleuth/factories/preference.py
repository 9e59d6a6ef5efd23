"""Judges and rewards of continuations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import read_documents
from sleuth.factories.judges import JudgePool, JudgeUse, identity_of, require_available
from sleuth.factories.rewards import function_record, function_reward_of, require_endings
from sleuth.factories.text import excerpts_of
from sleuth.judges.cache import NamedPairJudge
from sleuth.judges.ending import EndingJudge
from sleuth.judges.tournament import BothOrders, OneOrder
from sleuth.recipe.judges import ContinuationJudge, EndingJudgeRecipe, HttpJudgeRecipe
from sleuth.recipe.preference import (
    ComparisonRecipe,
    FunctionPreferenceRecipe,
    MechanicsRecipe,
    OnlineDpoRecipe,
    PairwiseRecipe,
    PointwiseRecipe,
    PreferenceRecipe,
    WinRateRecipe,
)
from sleuth.rewards.preference import MechanicsReward, PairwiseReward, PointwiseReward
from sleuth.rewards.total import TotalReward
from sleuth.runs.protocol import RewardPart, RewardSpec
from sleuth.types import PairJudge, Reward, SleuthError, Task

ORDERS = {"both": BothOrders, "one": OneOrder}
PAIRWISE_VERSION, POINTWISE_VERSION, MECHANICS_VERSION = 1, 1, 1
"""Increased whenever the same candidates could get another score."""


def pair_judge_of(recipe: ComparisonRecipe, judge_pool: JudgePool) -> PairJudge:
    """The judge that compares two continuations, in the orders of the recipe."""
    return ORDERS[recipe.orders](_asked(recipe.judge, judge_pool))


def shown_to(judge: ContinuationJudge) -> Callable[[Task], str]:
    """What a judge sees besides the texts: a judge of endings the golden answers, one a line; others nothing."""
    return _right_endings if isinstance(judge, EndingJudgeRecipe) else lambda task: ""


def preference_reward_of(rewards: Sequence[PreferenceRecipe], judge_pool: JudgePool) -> Reward:
    """The weighted sum of the rewards of candidates."""

    def build(reward: PreferenceRecipe) -> Reward:
        match reward:
            case PairwiseRecipe():
                judge = pair_judge_of(reward, judge_pool)
                return PairwiseReward(judge, schedule=reward.schedule, evidence_of=shown_to(reward.judge))
            case PointwiseRecipe():
                return PointwiseReward(judge_pool.judge(reward.judge), reward.dimension)
            case MechanicsRecipe():
                return MechanicsReward()
            case FunctionPreferenceRecipe():
                return function_reward_of(reward)

    return TotalReward([build(reward) for reward in rewards], [reward.weight for reward in rewards])


def preference_spec_of(rewards: Sequence[PreferenceRecipe]) -> RewardSpec:
    """The record of `preference_reward_of` that checkpoints carry."""
    return RewardSpec(parts=tuple(map(_part, rewards)))


def preference_judges_in(rewards: Sequence[PreferenceRecipe]) -> Iterator[JudgeUse]:
    """Each judge that is a model."""
    for reward in rewards:
        if isinstance(reward, PairwiseRecipe | PointwiseRecipe) and isinstance(reward.judge, HttpJudgeRecipe):
            yield JudgeUse(kind=reward.kind, judge=reward.judge)


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
    judges = continuation_judges_in(stage)
    for judge in judges:
        if isinstance(judge, HttpJudgeRecipe):
            require_available(judge)
    if tokenizer is None:
        next(read_documents(stage.data.texts), None)
        return []
    tasks = excerpts_of(stage.data, tokenizer).tasks
    if any(isinstance(judge, EndingJudgeRecipe) for judge in judges):
        require_endings(tasks)
    return tasks


def continuation_judges_in(stage: OnlineDpoRecipe | WinRateRecipe) -> list[ContinuationJudge]:
    """The judges of a stage."""
    if isinstance(stage, WinRateRecipe):
        return [stage.judge]
    if stage.loss.kind == "original_nll":
        return []
    return [part.judge for part in stage.reward if isinstance(part, PairwiseRecipe | PointwiseRecipe)]


def _right_endings(task: Task) -> str:
    return "\n".join(task.golden_answers)


def _asked(judge: ContinuationJudge, judge_pool: JudgePool) -> NamedPairJudge:
    return EndingJudge(judge.flip) if isinstance(judge, EndingJudgeRecipe) else judge_pool.pair_judge(judge)


def _part(reward: PreferenceRecipe) -> RewardPart:
    if isinstance(reward, FunctionPreferenceRecipe):
        return RewardPart(kind=reward.kind, weight=reward.weight, **function_record(reward))
    match reward:
        case PairwiseRecipe():
            scorer, version = f"{_name(reward.judge)}, {reward.schedule}, orders={reward.orders}", PAIRWISE_VERSION
        case PointwiseRecipe():
            scorer, version = f"{_name(reward.judge)}, {reward.dimension}", POINTWISE_VERSION
        case MechanicsRecipe():
            scorer, version = "rules", MECHANICS_VERSION
    return RewardPart(kind=reward.kind, scorer=scorer, scorer_version=version, weight=reward.weight)


def _name(judge: ContinuationJudge) -> str:
    return EndingJudge(judge.flip).identity if isinstance(judge, EndingJudgeRecipe) else identity_of(judge)
