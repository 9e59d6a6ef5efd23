"""Scores stored rollouts with another reward, and compares the scores with the recorded ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.answers.factory import misfit_lines, require_gradable, reward_of, reward_spec_of
from sleuth.answers.scorers.scorer import transcript_of
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.evaluation.significance import kendall_tau_b
from sleuth.judges.factory import JudgePool
from sleuth.learn.losses import has_signal
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.rewards import RewardFields, scored_late
from sleuth.render import load_tokenizer
from sleuth.rollout import scored
from sleuth.runs.checkpoints import step_name
from sleuth.runs.rollouts import read_rollouts
from sleuth.training.stage_context import StageContext
from sleuth.training.step_metrics import values_of
from sleuth.types import Group, SleuthError


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

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


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
