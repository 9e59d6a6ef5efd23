"""A whole GRPO step on two-turn search episodes: rollout, rewards, advantages, update; ours as in
`training/grpo.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.episodes import Episode, Library, reward_of
from benchmarks.ours import BUDGET
from benchmarks.samplers import open_engine
from benchmarks.sides import LEARNING_RATE, MAX_GRAD_NORM
from benchmarks.two_turn import play_groups
from sleuth.learn.batch import Row, collate, trajectory_row
from sleuth.learn.losses import PolicyLoss, group_advantages
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.types import Group


class Stepper(Protocol):
    """A side that samples and updates."""

    def play(self, steps: Sequence[tuple[Sequence[Episode], Library]]) -> list[float]:
        """The seconds of one step for each set of episodes."""
        ...


class OurStep:
    """Engine and policy share one model."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_engine(folder / "small")
        optimisation = Optimisation(steps=100, learning_rate=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM)
        self.policy = Policy(self.engine.model, optimisation)

    def play(self, steps: Sequence[tuple[Sequence[Episode], Library]]) -> list[float]:
        """The seconds of one step for each set of episodes."""
        return [self._step(at, *given) for at, given in enumerate(steps)]

    def _step(self, step: int, episodes: Sequence[Episode], library: Library) -> float:
        started = time.perf_counter()
        groups = play_groups(self.engine, episodes, library, step=step)
        rows = [row for group in groups for row in _rows(group)]
        self.policy.update(collate(rows), PolicyLoss(), budget=BUDGET)
        self.engine.publish(step + 1)
        return time.perf_counter() - started


def open_stepper(side: str, folder: Path, **setting: Any) -> Stepper:
    """Ours or TRL's; TRL is imported only for its own side."""
    if side == "ours":
        return OurStep(folder)
    from benchmarks.trl_steps import TrlStep  # installed only where the benchmarks run

    return TrlStep(folder, **setting)


def _rows(group: Group) -> list[Row]:
    rewards = [reward_of(episode.trajectory.tokens) for episode in group.episodes]
    advantages = group_advantages(rewards, "grpo")
    return [
        trajectory_row(episode.trajectory, advantage)
        for episode, advantage in zip(group.episodes, advantages, strict=True)
        if advantage is not None
    ]
