"""The order in which tasks are played and rows are trained."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class InfiniteSampler(Generic[Item]):
    """An endless sequence of items, shuffled again in each epoch: a function of the seed and of how many were taken."""

    def __init__(self, items: Sequence[Item], *, seed: tuple[int, ...], taken: int = 0) -> None:
        self.items = items
        self.seed = seed
        self.taken = taken

    def take(self, count: int) -> list[Item]:
        """The next `count` items."""
        taken = self.peek(count)
        self.taken += count
        return taken

    def peek(self, count: int) -> list[Item]:
        """What `take` would return."""
        return [self.at(index) for index in range(self.taken, self.taken + count)]

    def at(self, index: int) -> Item:
        """The item at an index of the sequence, from 0."""
        epoch, place = divmod(index, len(self.items))
        return self.items[_permutation(len(self.items), (*self.seed, epoch))[place]]


@functools.lru_cache(maxsize=16)  # of several sources, the epochs that they are in
def _permutation(count: int, key: tuple[int, ...]) -> list[int]:
    return random.Random(f"order {key}").sample(range(count), count)
