"""Known tricks under a run's own reward, beside an honest answer: whether a policy could find something that pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sleuth.dialects.refine import ANSWER_ONLY
from sleuth.factories import Setting
from sleuth.rewards.citation.tricks import TRICKS, honest_answer
from sleuth.types import Episode, Group, Reward, Segment, Task, Trajectory

TASKS = 16
"""So many questions are tried at once: one alone says little of a trick, for a judge may miss what it is shown."""
THOUGHT = "The snippets tell."
"""Stands where a mode wants a thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What the tricks were paid: by name, the mean over the questions that it could be played on, and what the honest
    answers to the same questions were paid."""

    questions: int
    paid: Mapping[str, tuple[float, float]]

    @property
    def winners(self) -> list[str]:
        """Those that are paid no less than honesty."""
        return [name for name, (trick, honest) in self.paid.items() if trick >= honest]

    @property
    def honest(self) -> float | None:
        """What honesty is paid, over all tricks; None where nothing could be played."""
        return fmean(honest for _, honest in self.paid.values()) if self.paid else None

    def figures(self) -> dict[str, Any]:
        """For a row of `metrics.jsonl`."""
        return {"honest_paid": self.honest, "tricks_won": self.winners}

    def line(self) -> str:
        """All of it in a sentence."""
        if not self.paid:
            return "red team: no question brings an honest answer of its own to compare tricks with"
        tried = f"red team: {len(self.paid)} tricks on {self.questions} questions"
        if not self.winners:
            return f"{tried}, and none is paid as much as an honest answer ({self.honest:.2f})"
        told = ", ".join(f"{name} {self.paid[name][0]:.2f} against {self.paid[name][1]:.2f}" for name in self.winners)
        return f"{tried}: paid no less than an honest answer: {told}"


async def attack(tasks: Sequence[Task], setting: Setting, reward: Reward) -> Attack:
    """Every trick on the first tasks that bring an honest answer, scored as episodes of the policy would be. A missing
    score is left out with the honest one beside it."""
    able = [(task, honest) for task in tasks if (honest := honest_answer(task))][:TASKS]
    paid: dict[str, list[tuple[float, float]]] = {name: [] for name in TRICKS}
    for task, honest in able:
        answers = {name: answer for name, trick in TRICKS.items() if (answer := trick(honest)) is not None}
        turns = [_turn(setting, text) for text in (honest.text, *answers.values())]
        episodes = [await _episode(task, setting, turn, sample=at) for at, turn in enumerate(turns)]
        scores = await reward(Group(task=task, episodes=tuple(episodes)))
        honestly, *tricked = (score.value for score in scores)
        for name, value in zip(answers, tricked, strict=True):
            if value is not None and honestly is not None:
                paid[name].append((value, honestly))
    means = {name: (fmean(t for t, _ in pairs), fmean(h for _, h in pairs)) for name, pairs in paid.items() if pairs}
    return Attack(questions=len(able), paid=means)


def _turn(setting: Setting, answer: str) -> str:
    """An answer as the policy would write it."""
    dialect = setting.dialect
    thought = "" if dialect.name == ANSWER_ONLY.name else dialect.think.around(THOUGHT)
    return thought + dialect.answer.around(answer)


async def _episode(task: Task, setting: Setting, turn: str, *, sample: int) -> Episode:
    """A turn as the environment takes it; it was never sampled, so that it has no tokens."""
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
