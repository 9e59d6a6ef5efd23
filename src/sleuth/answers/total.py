"""Several rewards as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sleuth.types import Group, Reward, Score


class TotalReward:
    """The weighted sum of several rewards and of their token credits; missing if any of them is. Parts stay unweighted;
    the note is the first non-empty one, and the `notes` are those of all."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self.rewards = rewards
        self.weights = weights

    async def __call__(self, group: Group) -> list[Score]:
        if not self.rewards:  # all scores come from a later phase
            return [Score(value=0.0) for _ in group.episodes]
        by_reward = await asyncio.gather(*(reward(group) for reward in self.rewards))
        return [self._sum(scores) for scores in zip(*by_reward, strict=True)]

    def _sum(self, scores: Sequence[Score]) -> Score:
        missing = [score.note for score in scores if score.value is None]
        if missing:
            return Score(value=None, note=missing[0], **_joined(scores))
        value = sum(weight * (score.value or 0.0) for weight, score in zip(self.weights, scores, strict=True))
        credits = tuple(
            replace(credit, value=weight * credit.value)
            for weight, score in zip(self.weights, scores, strict=True)
            for credit in score.credits
        )
        note = next((score.note for score in scores if score.note), "")
        return Score(value=value, note=note, credits=credits, **_joined(scores))


class WithParts:
    """The scores of a reward, with the parts and notes that other rewards give the same episodes; its own win. With a
    `name` its value is a part too."""

    def __init__(self, reward: Reward, others: Sequence[Reward], *, name: str | None = None) -> None:
        self.reward = reward
        self.others = others
        self.name = name

    async def __call__(self, group: Group) -> list[Score]:
        scores, *others = await asyncio.gather(*(reward(group) for reward in (self.reward, *self.others)))
        return [replace(one, **_joined([self._named(one), *more])) for one, *more in zip(scores, *others, strict=True)]

    def _named(self, score: Score) -> Score:
        if self.name is None or score.value is None:
            return score
        return replace(score, parts={self.name: score.value, **score.parts})


def _joined(scores: Sequence[Score]) -> dict[str, Any]:
    """The parts and the notes of all; of the same name, that of the first."""
    parts: dict[str, float] = {}
    notes: dict[str, str] = {}
    for score in scores:
        parts = {**parts, **{name: value for name, value in score.parts.items() if name not in parts}}
        notes = {**notes, **{name: note for name, note in score.notes.items() if name not in notes}}
    return {"parts": parts, "notes": notes}
