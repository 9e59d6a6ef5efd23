"""The processes that train one model together. The default is a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Rank `rank` of `world` processes. This class is a world of one; `sleuth.training.group` has one that
    communicates.

    Every rank calls the same methods in the same order.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes the run folder, calls judges and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether the world has one process."""
        return self.world == 1

    def share(self, count: int) -> slice:
        """This rank's contiguous part of `count` items; parts differ in length by at most one."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    def broadcast(self, work: Callable[[], Item]) -> Item:
        """Runs `work` on rank 0 only and returns its result, or raises its error, on every rank."""
        return work()

    def all_gather(self, mine: Sequence[Item]) -> list[Item]:
        """The items of all ranks in rank order, on every rank."""
        return list(mine)

    def all_reduce(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sums over ranks, by name; every rank passes the same names."""
        return dict(mine)

    def channel(self) -> Ranks:
        """The same ranks for another thread, whose calls do not mix with those of this one."""
        return self


ALONE = Ranks()
"""A world of one process."""
