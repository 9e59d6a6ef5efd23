"""The curriculum of "The second idea" in verifiers: a taskset without end."""

import random
from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str
    level: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    pass


class SumConfig(vf.TasksetConfig):
    seed: int = 0


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    INFINITE = True

    def load(self) -> Iterator[SumTask]:
        for at in count():
            a, b = (random.Random(f"{self.config.seed} {at} {side}").randrange(10 + at // 8) for side in "ab")
            yield SumTask(SumData(prompt=f"{a} + {b}?", answer=str(a + b), level=at // 8), self.config.task)


__all__ = ["SumTaskset"]
