"""In which order tasks are asked, and rows are taught."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class InfiniteSampler(Generic[Item]):
    """An endless order of items, shuffled anew each time through: a function of the seed and of how many were taken."""

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
        """What `take` would give."""
        return [self.at(index) for index in range(self.taken, self.taken + count)]

    def at(self, index: int) -> Item:
        """The item in a place of the order, from 0."""
        time_through, place = divmod(index, len(self.items))
        return self.items[_permutation(len(self.items), (*self.seed, time_through))[place]]


@functools.lru_cache(maxsize=2)
def _permutation(count: int, key: tuple[int, ...]) -> list[int]:
    return random.Random(f"order {key}").sample(range(count), count)
