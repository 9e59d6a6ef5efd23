"""One recorded step again, from its rollouts: under the same reward, loss and layout, or under others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from sleuth.factories import JudgePool, dialect_in, optimisation_of, policy_loss_of, reward_of
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.render import load_tokenizer
from sleuth.rollout import scored
from sleuth.runs.checkpoints import load_state, step_name, step_of
from sleuth.runs.rollouts import read_advantages, read_rollouts
from sleuth.stage_context import Saved, StageContext
from sleuth.training.batching import advantages_of, teaches, training_batch
from sleuth.training.credit.thought_gain import gain_in
from sleuth.training.step_metrics import Advantages, values_of
from sleuth.types import Group, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a step's update was, is again, and would be after a change. Losses are None where nothing is taught.

    `cosine` is between the gradients of the step as it was and of the changed one; `scores_changed` counts episodes.
    """

    step: int
    begun_at: int
    recorded_loss: float | None
    loss: float | None
    changed_loss: float | None
    cosine: float | None
    scores_changed: int
    episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The policy after `step`, and the tokens of a micro-batch that it then had memory for."""

    policy: Policy
    step: int
    budget: int


def replay(
    run: StageContext,
    step: int,
    changed: GrpoRecipe,
    *,
    padded: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replay:
    """Step `step` of the run, which is one of `run`'s stage, as recorded and under the stage `changed`.

    The weights before it are those of the nearest earlier checkpoint, or of the model that the stage began with, and
    the updates of the steps between, made again from their rollouts. Shuffled scores cannot be dealt again, and gains
    of thoughts not be read again: they stay, and so do the credits of single searches. A judge is asked only where the
    rewards are others, and then for what was not kept.
    Raises SleuthError where a file is missing.
    """
    stage = run.recipe.stage[run.index]
    assert isinstance(stage, GrpoRecipe)
    if gain_in(changed.reward) != gain_in(stage.reward):
        raise SleuthError(
            'kind = "gain": what thoughts gained was told while the run had its scorer; leave it as it is'
        )
    rows = {row["step"]: row for row in run.folder.metrics.rows() if row["stage"] == stage.name}
    if step not in rows:
        raise SleuthError(f"{run.folder.path}: stage {stage.name} has recorded no step {step}")
    begun = _begin_before(run, stage, step)
    policy = begun.policy
    for between in range(begun.step + 1, step):
        if rows[between]["loss"] is not None:
            batch = training_batch(*_recorded(run, between), stage)
            policy.update(batch, policy_loss_of(stage), budget=begun.budget)
        progress(between - begun.step, step - begun.step)
    groups, advantages = _recorded(run, step)
    anew = groups
    if not any(reward.shuffle for reward in changed.reward) and gain_in(changed.reward) is None:
        tokenizer = load_tokenizer(str(run.model))
        with JudgePool(run.folder.verdicts, asks=changed.reward != stage.reward) as judge_pool:
            reward = reward_of(changed.reward, dialect_in(changed.env), tokenizer, judge_pool)
            anew = list(map(_with_credits_of, groups, asyncio.run(scored(groups, reward))))
    left_out = [all(value is None for value in of_group) for of_group in advantages]
    new_advantages = [advantages_of(group, changed, replaced=out) for group, out in zip(anew, left_out, strict=True)]
    was = None
    if rows[step]["loss"] is not None:
        was = _gradient(policy, groups, advantages, stage, begun.budget)
    if policy.reference is None:
        policy.measure_from(_reference(run, changed))
    now = _gradient(policy, anew, new_advantages, changed, begun.budget, by_row=padded)
    pairs = [
        pair
        for one, other in zip(groups, anew, strict=True)
        for pair in zip(values_of(one), values_of(other), strict=True)
    ]
    return Replay(
        step=step,
        begun_at=begun.step,
        recorded_loss=rows[step]["loss"],
        loss=was[0] if was else None,
        changed_loss=now[0] if now else None,
        cosine=_cosine(was[1], now[1]) if was and now else None,
        scores_changed=sum(one != other for one, other in pairs),
        episodes=len(pairs),
    )


def _with_credits_of(recorded: Group, group: Group) -> Group:
    scores = zip(group.scores, recorded.scores, strict=True)
    return replace(group, scores=tuple(replace(score, credits=was.credits) for score, was in scores))


def _begin_before(run: StageContext, stage: GrpoRecipe, step: int) -> Begun:
    """With the nearest checkpoint before `step`, or with the model that the stage began with."""
    earlier = [place for place in run.checkpoints() if step_of(place) < step]
    saved = _saved(run, earlier[-1]) if earlier else None
    model, _ = run.begun(saved)
    policy = Policy(
        model, optimisation_of(stage), _reference(run, stage), gradient_checkpointing=stage.gradient_checkpointing
    )
    if saved is None:
        return Begun(policy=policy, step=run.first_step, budget=stage.tokens_per_micro_batch)
    policy.load_state_dict(saved.state["policy"])
    return Begun(policy=policy, step=run.first_step + saved.steps, budget=saved.state["budget"])


def _saved(run: StageContext, checkpoint: Path) -> Saved:
    return Saved(checkpoint=checkpoint, steps=step_of(checkpoint) - run.first_step, state=load_state(checkpoint))


def _reference(run: StageContext, stage: GrpoRecipe) -> PreTrainedModel | None:
    return frozen_copy(run.load(run.model)[0]) if stage.loss.beta else None


def _recorded(run: StageContext, step: int) -> tuple[list[Group], list[list[float | None]]]:
    file = run.folder.rollouts / f"{step_name(step)}.parquet"
    return read_rollouts(file), read_advantages(file)


def _gradient(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Advantages,
    stage: GrpoRecipe,
    budget: int,
    *,
    by_row: bool = False,
) -> tuple[float, Tensor] | None:
    """None where nothing is taught."""
    if not teaches(groups, advantages, stage):
        return None
    batch = training_batch(groups, advantages, stage)
    return policy.gradient(batch, policy_loss_of(stage), budget=budget, by_row=by_row)


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))
