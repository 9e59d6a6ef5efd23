"""In which order tasks are asked."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from sleuth.types import Task


class TaskOrder:
    """An endless order of tasks, shuffled anew each time through: a function of the seed and of how many were asked."""

    def __init__(self, tasks: Sequence[Task], *, seed: tuple[int, ...], asked: int = 0) -> None:
        self.tasks = tasks
        self.seed = seed
        self.asked = asked

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        taken = self.peek(count)
        self.asked += count
        return taken

    def peek(self, count: int) -> list[Task]:
        """What `take` would give."""
        return [self._at(index) for index in range(self.asked, self.asked + count)]

    def _at(self, index: int) -> Task:
        time_through, place = divmod(index, len(self.tasks))
        return self.tasks[_permutation(len(self.tasks), (*self.seed, time_through))[place]]


@functools.lru_cache(maxsize=2)
def _permutation(count: int, key: tuple[int, ...]) -> list[int]:
    return random.Random(f"order {key}").sample(range(count), count)
