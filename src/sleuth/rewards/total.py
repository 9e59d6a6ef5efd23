"""Several rewards as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sleuth.types import Group, Reward, Score


class TotalReward:
    """The sum of several rewards. Where one of them is missing, so is the sum: half a reward is another reward."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = rewards

    async def __call__(self, group: Group) -> list[Score]:
        scores = await asyncio.gather(*(reward(group) for reward in self.rewards))  # by reward, then by episode
        return [_sum(of_episode) for of_episode in zip(*scores, strict=True)]


def _sum(scores: Sequence[Score]) -> Score:
    missing = [score.note for score in scores if score.value is None]
    parts = {name: value for score in scores for name, value in score.parts.items()}
    if missing:
        return Score(value=None, parts=parts, note=missing[0])
    return Score(value=sum(score.value or 0.0 for score in scores), parts=parts, note=scores[0].note)
