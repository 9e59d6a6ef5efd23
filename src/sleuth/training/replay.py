"""Computes a recorded step again from its rollouts: with the same reward, loss and layout, or with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from sleuth.answers.factory import reward_of
from sleuth.engines.remote.served_teacher import ServedTeacher
from sleuth.judges.factory import JudgePool
from sleuth.learn.batch import Advantages, Verdicts
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.token_budget import TokenBudget
from sleuth.own.functions import load_function
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.rewards import FunctionFields, scored_late
from sleuth.render import load_tokenizer
from sleuth.rollout import scored
from sleuth.runs.checkpoints import load_state, require_own, step_name, step_of
from sleuth.runs.rollouts import read_advantages, read_rollouts
from sleuth.training.grpo import advantages_of
from sleuth.training.learning import load, load_teacher, model_to_train, policy_loss_of, policy_of, served_teacher_of
from sleuth.training.minibatches import ask_teacher, batch_of_step, batches_of_step, update_on
from sleuth.training.stage_context import Saved, StageContext
from sleuth.training.step_metrics import values_of
from sleuth.types import Group, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The loss of a step as recorded, computed again, and after a change; None if there was no update.

    `cosine` is between the gradients of the step as it was and of the changed one; `scores_changed` counts episodes.
    """

    step: int
    restored_at: int
    recorded_loss: float | None
    loss: float | None
    changed_loss: float | None
    cosine: float | None
    scores_changed: int
    episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The policy after `step`, the tokens of a micro-batch that it had memory for, and a teacher on a server."""

    policy: Policy
    step: int
    budget: TokenBudget
    served_teacher: ServedTeacher | None = None

    def verdicts(self, groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> Verdicts | None:
        """Those of a teacher on a server, which is asked again."""
        return self.served_teacher and ask_teacher(self.served_teacher, groups, advantages, stage)[0]


def replay(
    context: StageContext,
    step: int,
    changed: GrpoRecipe,
    *,
    padded: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replay:
    """Step `step` of the context, which is one of `run`'s stage, as recorded and under the stage `changed`.

    The weights before it are those of the nearest earlier checkpoint, or of the model that the stage started from,
    updated again by the recorded steps between. Shuffled scores and gains of thoughts are not computed again: the
    recorded ones are used, and so are the credits of single searches. Judges are called only if the rewards differ, and
    then for verdicts that are not cached.
    Raises SleuthError if a file is missing.
    """
    stage = context.recipe.stages_of(GrpoRecipe)[context.index]
    if scored_late(changed.reward) != scored_late(stage.reward):
        raise SleuthError('kind = "gain": the gain of thoughts needs the scorer of the run; leave the reward as it is')
    if "prompts_per_update" in stage.repeats:
        raise SleuthError(
            f"stage {stage.name}: prompts_per_update = {stage.prompts_per_update}: a recorded step has several "
            "minibatches, each at other weights, and no gradient of its own to compare"
        )
    rows = {row["step"]: row for row in context.folder.metrics.rows() if row["stage"] == stage.name}
    if step not in rows:
        raise SleuthError(f"{context.folder.path}: stage {stage.name} recorded no step {step}")
    for function in (stage.loss, changed.loss, *(one for one in changed.reward if isinstance(one, FunctionFields))):
        if function.function is not None:  # it may be refused: before the weights are rebuilt, which takes minutes
            load_function(function.function, function.files)
    restored = _restored_before(context, stage, step)
    policy = restored.policy
    for between in range(restored.step + 1, step):
        if rows[between]["loss"] is not None:
            recorded = _recorded(context, between)
            batches = batches_of_step(*recorded, stage, restored.verdicts(*recorded, stage))
            update_on(policy, batches, policy_loss_of(stage), restored.budget, passes=stage.updates_per_batch)
        progress(between - restored.step, step - restored.step)
    groups, advantages = _recorded(context, step)
    rescored = groups
    if not any(reward.shuffle for reward in changed.reward) and not scored_late(changed.reward):
        tokenizer = load_tokenizer(str(context.model))
        with JudgePool(context.folder.verdicts, asks=changed.reward != stage.reward) as judge_pool:
            reward = reward_of(changed.reward, changed.env.plain_dialect(), tokenizer, judge_pool)
            rescored = list(map(_with_credits_of, groups, asyncio.run(scored(groups, reward))))
    left_out = [all(value is None for value in of_group) for of_group in advantages]
    new_advantages = [
        advantages_of(group, changed, replaced=out) for group, out in zip(rescored, left_out, strict=True)
    ]
    was = None
    if rows[step]["loss"] is not None:
        was = _gradient(restored, groups, advantages, stage)
    if policy.reference is None:
        policy.measure_from(_reference(context, changed))
    now = _gradient(restored, rescored, new_advantages, changed, by_row=padded)
    pairs = [
        pair
        for one, other in zip(groups, rescored, strict=True)
        for pair in zip(values_of(one), values_of(other), strict=True)
    ]
    return Replay(
        step=step,
        restored_at=restored.step,
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


def _restored_before(context: StageContext, stage: GrpoRecipe, step: int) -> Restored:
    """From the nearest checkpoint before `step`, or the model that the stage started from."""
    earlier = [place for place in context.checkpoints.resumable() if step_of(place) < step]
    saved = _saved(context, earlier[-1]) if earlier else None
    model, tokenizer = model_to_train(context, saved)
    served = served_teacher_of(stage, tokenizer)
    teacher = None
    if stage.teacher is not None and served is None:
        teacher = load_teacher(context, stage.teacher.model, tokenizer, saved)[0]
    policy = policy_of(stage, model, _reference(context, stage), teacher=teacher)
    if saved is None:
        step, tokens = context.first_step, stage.tokens_per_micro_batch
    else:
        policy.load_state_dict(saved.state["policy"])
        step, tokens = context.first_step + saved.steps, saved.state["budget"]
    return Restored(policy=policy, step=step, budget=TokenBudget(tokens), served_teacher=served)


def _saved(context: StageContext, checkpoint: Path) -> Saved:
    require_own(checkpoint, context.folder.manifest.run)
    return Saved(checkpoint=checkpoint, steps=step_of(checkpoint) - context.first_step, state=load_state(checkpoint))


def _reference(context: StageContext, stage: GrpoRecipe) -> PreTrainedModel | None:
    return frozen_copy(load(context, context.model)[0]) if stage.loss.beta else None


def _recorded(context: StageContext, step: int) -> tuple[list[Group], list[list[float | None]]]:
    file = context.folder.rollouts / f"{step_name(step)}.parquet"
    return read_rollouts(file), read_advantages(file)


def _gradient(
    restored: Restored,
    groups: Sequence[Group],
    advantages: Advantages,
    stage: GrpoRecipe,
    *,
    by_row: bool = False,
) -> tuple[float, Tensor] | None:
    """Loss and gradient; None if the step has no update."""
    verdicts = restored.verdicts(groups, advantages, stage)
    if (batch := batch_of_step(groups, advantages, stage, verdicts)) is None:
        return None
    loss = policy_loss_of(stage)
    return restored.budget.run(lambda tokens: restored.policy.gradient(batch, loss, budget=tokens, by_row=by_row))


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))
