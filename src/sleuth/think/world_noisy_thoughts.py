"""Texts with thoughts that are right half of the time, so that reinforcement learning can improve on imitation.

The texts are those of `chained`. Half of the thoughts are right; a quarter start from the fact of another subject; a
quarter fit any text, and the ending is then a random candidate. The ending always follows from its thought: a model
that imitates such texts learns to trust its thoughts, and to think rightly half of the time. The right answer is known
for each text.
"""

from __future__ import annotations

import random
from dataclasses import replace

from sleuth.think.world_chained import ChainedText, ChainedTexts, ending_of, thought_of
from sleuth.think.world_endings import GENERIC_THOUGHTS
from sleuth.world.names import Split

RIGHT, MISTAKEN = 0.5, 0.25
"""Shares of thoughts that are right, and that mistake one subject for another; the rest are generic."""


class HastyTexts:
    """Texts about names of one split of a world of `people` people, each a function of (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.texts = ChainedTexts(people, split, ("hasty", *key))
        self.split: Split = split
        self.key = key

    def text(self, index: int) -> ChainedText:
        """Text number `index`; its `hops` and its `answer` are the right ones."""
        text, rng = self.texts.text(index), random.Random(f"hasty {self.split} {self.key} {index}")
        kind = rng.random()
        if kind < RIGHT:
            return text
        if kind < RIGHT + MISTAKEN:
            other, *rest = rng.choice(text.others)
            mistaken = (replace(text.hops[0], value=other.value), *rest)
            return replace(text, thought=thought_of(rng, mistaken), ending=ending_of(mistaken))
        return replace(
            text, thought=rng.choice(GENERIC_THOUGHTS), ending=ending_of(rng.choice([text.hops, *text.others]))
        )
