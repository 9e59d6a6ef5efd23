"""Computes a recorded step again from its rollouts: with the same reward, loss and layout, or with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from torch import Tensor
from transformers import PreTrainedModel

from sleuth.answers.factory import misfit_lines, require_gradable, reward_of, reward_spec_of
from sleuth.answers.scorers.scorer import transcript_of
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.evaluation.significance import kendall_tau_b
from sleuth.judges.factory import JudgePool
from sleuth.learn.batch import Advantages
from sleuth.learn.losses import has_signal
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, TokenBudget, frozen_copy
from sleuth.own.functions import load_function
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.rewards import FunctionFields, RewardFields, scored_late
from sleuth.recipe.schedule import Schedules, with_numbers
from sleuth.render import load_tokenizer
from sleuth.rollout import scored
from sleuth.runs.chain import step_name, step_of
from sleuth.runs.checkpoints import load_state, require_own
from sleuth.runs.metrics import as_written
from sleuth.runs.rollouts import read_advantages, read_rollouts
from sleuth.training.grpo import step_advantages
from sleuth.training.learning import (
    batch_of_step,
    batches_of_step,
    load,
    load_teacher,
    model_to_train,
    own_advantages,
    policy_loss_of,
    policy_of,
    update_on,
)
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
    """The policy after `step`, and the tokens of a micro-batch that it had memory for."""

    policy: Policy
    step: int
    budget: TokenBudget


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
    own = own_advantages(changed.loss)
    first, as_run, as_changed = context.first_step + 1, Schedules(stage), Schedules(changed)

    def in_force(one: GrpoRecipe, schedules: Schedules, at: int) -> GrpoRecipe:
        return with_numbers(one, schedules.numbers(at - first, as_written(rows.get(at - 1, {}))))

    restored = _restored_before(context, stage, step)
    policy = restored.policy
    for between in range(restored.step + 1, step):
        if rows[between]["loss"] is not None:
            then = in_force(stage, as_run, between)
            policy.optimiser.settings = Optimisation(**then.optimisation())
            batches = batches_of_step(*_recorded(context, between), then)
            update_on(
                policy, batches, policy_loss_of(then, between - first), restored.budget, passes=stage.updates_per_batch
            )
        progress(between - restored.step, step - restored.step)
    groups, advantages = _recorded(context, step)
    rescored = groups
    if not any(reward.shuffle for reward in changed.reward) and not scored_late(changed.reward):
        tokenizer = load_tokenizer(str(context.model))
        with JudgePool(context.folder.verdicts, asks=changed.reward != stage.reward) as judge_pool:
            reward = reward_of(changed.reward, changed.env.plain_dialect(), tokenizer, judge_pool)
            rescored = list(map(_with_credits_of, groups, asyncio.run(scored(groups, reward))))
    left_out = [all(value is None for value in of_group) for of_group in advantages]
    replaced = [at for at, out in enumerate(left_out) if out]
    new_advantages = step_advantages(rescored, changed, replaced, own)
    was = None
    if rows[step]["loss"] is not None:
        was = _gradient(restored, groups, advantages, in_force(stage, as_run, step), step - first)
    if policy.reference is None:
        policy.measure_from(_reference(context, changed))
    now = _gradient(
        restored, rescored, new_advantages, in_force(changed, as_changed, step), step - first, by_row=padded
    )
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
    teacher = None
    if stage.teacher is not None:
        teacher = load_teacher(context, stage.teacher.model, tokenizer, saved)[0]
    policy = policy_of(stage, model, _reference(context, stage), teacher=teacher)
    if saved is None:
        step, tokens = context.first_step, stage.tokens_per_micro_batch
    else:
        policy.load_state_dict(saved.state["policy"])
        step, tokens = context.first_step + saved.steps, saved.state["budget"]
    return Restored(policy=policy, step=step, budget=TokenBudget(tokens))


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
    made: int,
    *,
    by_row: bool = False,
) -> tuple[float, Tensor] | None:
    """Loss and gradient; None if the step has no update."""
    if (batch := batch_of_step(groups, advantages, stage)) is None:
        return None
    loss = policy_loss_of(stage, made)
    return restored.budget.run(lambda tokens: restored.policy.gradient(batch, loss, budget=tokens, by_row=by_row))


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The scores of all episodes under one reward: their `mean`, how many are missing and why the first one is, and the
    share of groups with `signal`, whose scores differ."""

    mean: float | None
    missing: int
    why: str
    signal: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A stage's scores `before`, as recorded, and `after`, under the other reward; episodes with both are compared.

    `within` is Kendall's tau-b of siblings, the mean over the groups that both rewards rank: advantages depend on
    nothing else. `overall` is that of all episodes together. `same_best` is the share of the groups that either reward
    ranks in which a best sibling under the one is a best one under the other. `judge` counts the calls of judges.
    """

    stage: str
    steps: int
    groups: int
    episodes: int
    before: Scoring
    after: Scoring
    within: Measured
    overall: float | None
    same_best: Measured
    judge: dict[str, float | None] = field(default_factory=dict)


def rescore(
    context: StageContext,
    rewards: Sequence[RewardFields],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    warn: Callable[[str], None] = lambda line: None,
) -> Rescored:
    """The rollouts of a stage scored with `rewards`. Nothing is generated, and nothing but verdicts is written. Calls
    `warn` first with a line for each scorer that does not fit them.

    Verdicts that the run cached are used. Judges are called for the others, unless all parts of the reward were used by
    the run already and only their weights differ: then missing scores stay missing. Raises SleuthError if scores were
    shuffled, so that they say nothing about their episodes, and if there are no rollouts.
    """
    stage = context.recipe.stages_of(GrpoRecipe)[context.index]
    if any(reward.shuffle for reward in (*stage.reward, *rewards)):
        raise SleuthError("shuffle = true: shuffled scores say nothing about their episodes")
    if scored_late((*stage.reward, *rewards)):
        raise SleuthError('kind = "gain": thoughts are scored by the weights that the stage started from; train again')
    steps = range(context.first_step + 1, context.first_step + stage.steps + 1)
    files = [file for step in steps if (file := context.folder.rollouts / f"{step_name(step)}.parquet").exists()]
    if not files:
        raise SleuthError(f"{context.folder.rollouts}: holds no rollouts of stage {stage.name}")
    scorers, prompt = [one.answer_scorer for one in rewards], getattr(stage.env, "prompt", stage.env.kind)
    for line in misfit_lines(scorers, stage.env.plain_dialect(), partial(_opening, files[0]), prompt):
        warn(f"{stage.name}: {line}")
    before: list[Group] = []
    after: list[Group] = []
    with JudgePool(context.folder.verdicts, asks=not _only_weights_differ(rewards, stage.reward)) as judge_pool:
        reward = reward_of(rewards, stage.env.plain_dialect(), load_tokenizer(str(context.model)), judge_pool)
        for done, file in enumerate(files, start=1):
            groups = read_rollouts(file)
            require_gradable(rewards, [group.task for group in groups])
            before += map(_scores_alone, groups)
            after += map(_scores_alone, asyncio.run(scored(groups, reward)))
            progress(done, len(files))
        judge = judge_pool.figures()
    return _compared(stage.name, files, before, after, judge)


def _only_weights_differ(rewards: Sequence[RewardFields], before: Sequence[RewardFields]) -> bool:
    """Whether every part was one of the parts before, with any weight; functions of the user, which ask no judge, are
    not compared: the run's own code is not imported for it."""
    known, parts = (
        [
            part.model_copy(update={"weight": 1.0})
            for part in reward_spec_of([reward for reward in side if reward.kind != "python"]).parts
        ]
        for side in (before, rewards)
    )
    return all(part in known for part in parts)


def _opening(file: Path) -> str:
    """The text before the policy's first token in the first episode of a file."""
    return transcript_of(read_rollouts(file)[0].episodes[0].trajectory).prompt


def _scores_alone(group: Group) -> Group:
    """The group without episodes: those of a whole run would not fit into memory."""
    return Group(task=group.task, episodes=(), scores=group.scores)


def _compared(
    stage: str, files: Sequence[Path], before: Sequence[Group], after: Sequence[Group], judge: dict[str, float | None]
) -> Rescored:
    tasks = [group.task.id for group in before]  # a question that was played twice is one cluster
    common = [_common(one, other) for one, other in zip(before, after, strict=True)]
    return Rescored(
        stage=stage,
        steps=len(files),
        groups=len(before),
        episodes=sum(len(group.scores) for group in before),
        before=_scoring(before),
        after=_scoring(after),
        within=bootstrap_mean([kendall_tau_b(*pair) for pair in common], tasks),
        overall=kendall_tau_b(*([value for pair in common for value in pair[side]] for side in (0, 1))),
        same_best=share([_same_best(*pair) for pair in common], tasks),
        judge=judge,
    )


def _scoring(groups: Sequence[Group]) -> Scoring:
    scores = [score for group in groups for score in group.scores]
    values = [score.value for score in scores if score.value is not None]
    return Scoring(
        mean=fmean(values) if values else None,
        missing=len(scores) - len(values),
        why=next((score.note for score in scores if score.value is None), ""),
        signal=share([float(has_signal(values_of(group))) for group in groups], [group.task.id for group in groups]),
    )


def _common(one: Group, other: Group) -> tuple[list[float], list[float]]:
    """The values of the siblings that have a score under both rewards."""
    pairs = zip(values_of(one), values_of(other), strict=True)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in known], [b for _, b in known]


def _same_best(one: Sequence[float], other: Sequence[float]) -> float | None:
    if not has_signal(one) and not has_signal(other):
        return None
    best = {at for at, value in enumerate(one) if value == max(one)}
    return float(any(other[at] == max(other) for at in best))
