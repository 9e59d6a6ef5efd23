"""Stored rollouts under another reward: what it would have paid, and whether it would have taught the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.factories import JudgePool, dialect_in, require_gradable, reward_of, reward_spec_of
from sleuth.learn.advantages import has_signal
from sleuth.metrics.intervals import Measured, bootstrap_mean, share
from sleuth.metrics.significance import kendall_tau_b
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.rewards import JudgedPartRecipe, RewardRecipe
from sleuth.render import load_tokenizer
from sleuth.rollout import scored
from sleuth.runs.checkpoints import step_name
from sleuth.runs.rollouts import read_rollouts
from sleuth.stage_context import StageContext
from sleuth.training.credit.thought_gain import gain_in
from sleuth.training.step_metrics import values_of
from sleuth.types import Group, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """One of the two ways in which all episodes were scored: their `mean`, how many have no score and why the first of
    these has none, and the share of groups whose scores differ, so that they teach something."""

    mean: float | None
    missing: int
    why: str
    signal: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A stage's episodes `before`, as they were paid, and `after`, under the other reward; each episode that both could
    score is compared.

    `within` is Kendall's tau-b of siblings, the mean over the groups that both rewards put into an order: advantages
    see nothing else. `overall` is that of all episodes together. `same_best` is the share of the groups that either
    puts into an order in which a best sibling of the one is a best one of the other. `judge` counts what was asked of
    judges that cost anything.
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
    run: StageContext,
    rewards: Sequence[RewardRecipe],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Rescored:
    """What `rewards` make of the rollouts of `run`'s stage. Nothing is generated and nothing written but verdicts.

    Verdicts come from those that the run kept. What is not there is asked for, but not where all parts of the reward
    were paid by the run already and only their weights are others: then what was missing stays missing. Raises
    SleuthError where scores say nothing about their episodes, because they were shuffled, or there are no rollouts.
    """
    stage, rewards = run.stage, list(map(_unwatched, rewards))
    assert isinstance(stage, GrpoRecipe)
    if any(reward.shuffle for reward in (*stage.reward, *rewards)):
        raise SleuthError("shuffle = true: scores that were dealt out anew say nothing about their episodes")
    if gain_in((*stage.reward, *rewards)) is not None:
        raise SleuthError('kind = "gain": thoughts are scored by the weights that the stage began with; train again')
    steps = range(run.first_step + 1, run.first_step + stage.steps + 1)
    files = [file for step in steps if (file := run.folder.rollouts / f"{step_name(step)}.parquet").exists()]
    if not files:
        raise SleuthError(f"{run.folder.rollouts}: holds no rollouts of stage {stage.name}")
    before: list[Group] = []
    after: list[Group] = []
    with JudgePool(run.folder.verdicts, asks=not _paid_already(rewards, stage.reward)) as judge_pool:
        reward = reward_of(rewards, dialect_in(stage.env), load_tokenizer(str(run.model)), judge_pool)
        for done, file in enumerate(files, start=1):
            groups = read_rollouts(file)
            require_gradable(rewards, [group.task for group in groups])
            before += map(_scores_alone, groups)
            after += map(_scores_alone, asyncio.run(scored(groups, reward)))
            progress(done, len(files))
        judge = judge_pool.figures()
    return _compared(stage.name, files, before, after, judge)


def _unwatched(reward: RewardRecipe) -> RewardRecipe:
    """Who watches a judge changes no score."""
    return reward.model_copy(update={"watch": None}) if isinstance(reward, JudgedPartRecipe) else reward


def _paid_already(rewards: Sequence[RewardRecipe], before: Sequence[RewardRecipe]) -> bool:
    """Whether every part is one of those before, whatever it weighs."""
    known, parts = (
        [part.model_copy(update={"weight": 1.0}) for part in reward_spec_of(side).parts] for side in (before, rewards)
    )
    return all(part in known for part in parts)


def _scores_alone(group: Group) -> Group:
    """A run's episodes would not all fit into memory."""
    return Group(task=group.task, episodes=(), scores=group.scores)


def _compared(
    stage: str, files: Sequence[Path], before: Sequence[Group], after: Sequence[Group], judge: dict[str, float | None]
) -> Rescored:
    tasks = [group.task.id for group in before]  # a question that was asked twice is one draw
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
    """The values of the siblings that both rewards could score."""
    pairs = zip(values_of(one), values_of(other), strict=True)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in known], [b for _, b in known]


def _same_best(one: Sequence[float], other: Sequence[float]) -> float | None:
    if not has_signal(one) and not has_signal(other):
        return None
    best = {at for at, value in enumerate(one) if value == max(one)}
    return float(any(other[at] == max(other) for at in best))
