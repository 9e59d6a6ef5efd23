"""The processes that train one model together, and which of them this one is. By itself it is a world of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Rank `rank` of `world`: as it stands a world of one, in which all is one's own and nothing is sent.

    `sleuth.distributed` has the one that talks to others. Every rank calls the same methods in the same order.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes the run folder, asks judges and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.world == 1

    def share(self, count: int) -> slice:
        """Which of `count` items are this rank's: a stretch, as long as that of any other or one longer."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    def broadcast(self, work: Callable[[], Item]) -> Item:
        """`work`, done by the first rank alone: what it returned, or raised, on every rank."""
        return work()

    def all_gather(self, mine: Sequence[Item]) -> list[Item]:
        """The items of all ranks, in the order of the ranks, on every rank."""
        return list(mine)

    def all_reduce(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sums over the ranks, by name; every rank has the same names."""
        return dict(mine)


ALONE = Ranks()
"""A world of one."""
