"""Texts by somebody who thinks before the last sentence ends, and not always well: where imitation leaves something to
earn.

The texts are those of `chained`. In half of them the thought is right; in a quarter it takes what was said of another
subject and goes on from there; in a quarter it would fit any text, and the ending is a guess among the candidates. An
ending always follows from its thought: whoever imitates such texts learns to trust what was thought, and to think
rightly half of the time. What a right ending names is known of each.
"""

from __future__ import annotations

import random
from dataclasses import replace

from sleuth.world.chained import ChainedText, ChainedTexts, ending_of, thought_of
from sleuth.world.endings import VAIN
from sleuth.world.names import Split

RIGHT, MISTAKEN = 0.5, 0.25
"""The shares of thoughts that are right, and that mistake one subject for another; the rest say nothing."""


class HastyTexts:
    """Texts about the names of one split of a world of `people` people, each a function of (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.texts = ChainedTexts(people, split, ("hasty", *key))
        self.split: Split = split
        self.key = key

    def text(self, index: int) -> ChainedText:
        """Text number `index`; its `hops` and its `answer` are what is right."""
        text, rng = self.texts.text(index), random.Random(f"hasty {self.split} {self.key} {index}")
        kind = rng.random()
        if kind < RIGHT:
            return text
        if kind < RIGHT + MISTAKEN:
            told, *rest = rng.choice(text.others)
            believed = (replace(text.hops[0], value=told.value), *rest)
            return replace(text, thought=thought_of(rng, believed), ending=ending_of(believed))
        return replace(text, thought=rng.choice(VAIN), ending=ending_of(rng.choice([text.hops, *text.others])))
