"""Several rewards as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sleuth.types import Group, Reward, Score


class TotalReward:
    """The weighted sum of several rewards, credits to single tokens included. Where one of them is missing, so is the
    sum: half a reward is another reward. Parts stay unweighted; the note is the first that there is."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self.rewards = rewards
        self.weights = weights

    async def __call__(self, group: Group) -> list[Score]:
        if not self.rewards:  # what is paid is told later
            return [Score(value=0.0) for _ in group.episodes]
        scores = await asyncio.gather(*(reward(group) for reward in self.rewards))  # by reward, then by episode
        return [self._sum(of_episode) for of_episode in zip(*scores, strict=True)]

    def _sum(self, scores: Sequence[Score]) -> Score:
        missing = [score.note for score in scores if score.value is None]
        parts = {name: value for score in scores for name, value in score.parts.items()}
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
