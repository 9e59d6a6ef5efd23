"""Several rewards as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sleuth.types import Group, Reward, Score


class TotalReward:
    """The weighted sum of several rewards and of their token credits; missing if any of them is. Parts stay unweighted;
    the note is the first non-empty one."""

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
        parts = {name: value for score in reversed(scores) for name, value in score.parts.items()}  # the first wins
        if missing:
            return Score(value=None, parts=parts, note=missing[0])
        value = sum(weight * (score.value or 0.0) for weight, score in zip(self.weights, scores, strict=True))
        credits = tuple(
            replace(credit, value=weight * credit.value)
            for weight, score in zip(self.weights, scores, strict=True)
            for credit in score.credits
        )
        note = next((score.note for score in scores if score.note), "")
        return Score(value=value, parts=parts, note=note, credits=credits)


class WithParts:
    """The scores of a reward, with the parts that other rewards give the same episodes; its own parts win."""

    def __init__(self, reward: Reward, others: Sequence[Reward]) -> None:
        self.reward = reward
        self.others = others

    async def __call__(self, group: Group) -> list[Score]:
        scores, *others = await asyncio.gather(*(reward(group) for reward in (self.reward, *self.others)))
        return [
            replace(score, parts={name: value for one in (*more, score) for name, value in one.parts.items()})
            for score, *more in zip(scores, *others, strict=True)
        ]
