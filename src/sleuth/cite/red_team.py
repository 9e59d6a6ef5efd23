"""Scores known tricks with a run's own reward, beside honest answers: whether a policy could game it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.cite.hostile import TRICKS, honest_answer, tricks_on
from sleuth.episodes.setting import Setting
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import Hook, RolloutWorker
from sleuth.types import Episode, Group, Reward, Segment, Task, Trajectory

TASKS = 16
"""Questions of an attack: one alone says little about a trick, since a judge may miss it once."""
THOUGHT = "The snippets tell."
"""The thought of modes that need one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The rewards of the tricks by name: the mean over the questions that the trick applies to, and the mean of the
    honest answers to the same questions."""

    questions: int
    rewards: Mapping[str, tuple[float, float]]

    def figures(self) -> dict[str, Any]:
        """The figures in `metrics.jsonl`: the mean reward of honest answers, None if no trick could be tried, and the
        tricks with at least that of theirs."""
        honest = fmean(honest for _, honest in self.rewards.values()) if self.rewards else None
        won = [name for name, (trick, honest) in self.rewards.items() if trick >= honest]
        return {"honest_paid": honest, "tricks_won": won}

    def line(self) -> str:
        """The outcome in a sentence."""
        if not self.rewards:
            return "red team: no question has an honest answer of its own to compare tricks with"
        honest, won = self.figures().values()
        tried = f"red team: {len(self.rewards)} tricks on {self.questions} questions"
        if not won:
            return f"{tried}, and none is paid as much as an honest answer ({honest:.2f})"
        shown = ", ".join("{} {:.2f} against {:.2f}".format(name, *self.rewards[name]) for name in won)
        return f"{tried}: paid no less than an honest answer: {shown}"


async def attack(tasks: Sequence[Task], setting: Setting, reward: Reward) -> Attack:
    """Every trick on the first tasks with an honest answer, scored as episodes of the policy would be. A missing score
    is left out together with the honest one."""
    tried = [(task, honest) for task in tasks if (honest := honest_answer(task))][:TASKS]
    pairs_of: dict[str, list[tuple[float, float]]] = {name: [] for name in TRICKS}
    for task, honest in tried:
        answers = tricks_on(honest)
        turns = [_turn(setting, text) for text in (honest.text, *answers.values())]
        episodes = [await _episode(task, setting, turn, sample=at) for at, turn in enumerate(turns)]
        scores = await reward(Group(task=task, episodes=tuple(episodes)))
        of_honest, *of_tricks = (score.value for score in scores)
        for name, value in zip(answers, of_tricks, strict=True):
            if value is not None and of_honest is not None:
                pairs_of[name].append((value, of_honest))
    means = {
        name: (fmean(t for t, _ in pairs), fmean(h for _, h in pairs)) for name, pairs in pairs_of.items() if pairs
    }
    return Attack(questions=len(tried), rewards=means)


def _turn(setting: Setting, answer: str) -> str:
    """An answer as the policy would write it."""
    dialect = setting.dialect
    thought = "" if dialect.name == ANSWER_ONLY.name else dialect.think.around(THOUGHT)
    return thought + dialect.answer.around(answer)


async def _episode(task: Task, setting: Setting, turn: str, *, sample: int) -> Episode:
    """The episode of a turn in the environment, without tokens: the turn was never sampled."""
    env = setting.env(task)
    opening = await env.open()
    reply = await env.reply(turn, "stop")
    trajectory = Trajectory(
        segments=(
            *(Segment(author=piece.author, tokens=(), text=piece.text) for piece in opening.pieces),
            Segment(author="policy", tokens=(), text=turn),
        ),
        actions=(reply.action,) if reply.action else (),
        stop=reply.done or "turns",
    )
    return Episode(task=task, sample=sample, trajectories=(trajectory,))


class RedTeam(Hook):
    """`red_team_every`: scores known tricks with the stage's reward, beside honest answers to the same questions."""

    def __init__(self, worker: RolloutWorker) -> None:
        self.worker = worker

    def opening(self) -> list[str]:
        return [self.worker.context.ranks.broadcast(lambda: self._attack(self.worker.order.items).line())]

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        if step % self.worker.stage.red_team_every:
            return {}
        return self.worker.context.ranks.broadcast(lambda: self._attack([group.task for group in groups]).figures())

    def _attack(self, tasks: Sequence[Task]) -> Attack:
        worker = self.worker
        assert worker.reward is not None  # only the first rank attacks
        found = asyncio.run(attack(tasks, worker.setting, worker.reward))
        worker.counted()  # the judge calls of an attack belong to no step
        return found
