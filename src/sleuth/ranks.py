"""The processes that train one model together. The default is a single process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from sleuth.host.threads import in_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


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
        """Whether this is rank 0, which writes the run folder and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether the world has one process."""
        return self.world == 1

    def share(self, count: int) -> slice:
        """This rank's contiguous part of `count` items; parts differ in length by at most one."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    def dealt(self, items: Sequence[Item], work: Callable[[Sequence[Item], int], Sequence[Result]]) -> list[Result]:
        """The results for all items in their order, on every rank. Each rank calls `work` with its share of the items
        and the number of the first of them; a rank without a share does not. An error of one rank is raised on all of
        them when each has ended its share, so that none waits for results that never come."""
        mine = self.share(len(items))
        found, error = list[Result](), None
        try:
            found += work(items[mine], mine.start) if items[mine] else ()
        except Exception as raised:
            error = raised
        return self._joined(found, error)

    async def deal(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item], int], Awaitable[Sequence[Result]]],
        before: Future[Any] | None = None,
        *,
        step: int = 0,
    ) -> list[Result]:
        """As `dealt`, with work that is awaited. Ranks exchange their results, in a thread, when they have exchanged
        those that `before` is the future of. Raises SleuthError if the others are at another `step`."""
        mine = self.share(len(items))
        found, error = list[Result](), None
        try:
            found += await work(items[mine], mine.start) if items[mine] else ()
        except Exception as raised:
            error = raised
        if self.alone:
            return self._joined(found, error)
        if before is not None:
            await asyncio.wrap_future(before)
        return await in_thread(lambda: self._joined(found, error, step))

    def _joined(self, mine: list[Result], error: Exception | None, step: int = 0) -> list[Result]:
        """The results of all ranks in rank order, or the error of the first rank that has one."""
        if error is not None:
            raise error
        return mine

    def shared(self, make: Callable[[], Item]) -> Item:
        """What `make` returns on rank 0, as an object whose methods each rank may call when it likes: those of rank 0
        run them. Raises the error of `make` on every rank."""
        return make()

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
