"""Who is let in: so many conversations at once, and so many who wait for one of them to end."""

from __future__ import annotations

import asyncio

from sleuth.serve.http.limits import Limits
from sleuth.serve.http.refused import Refused

SOON = {"retry-after": "1"}


class Admission:
    """`count` seats, given in the order of asking, in one event loop. `taken` and `waiting` count people,
    `given` all that ever had one."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.taken = 0
        self.waiting = 0
        self.given = 0
        self._limits = limits
        self._free = asyncio.Semaphore(count)

    async def take(self) -> None:
        """Wait for a seat. Raises `Refused`: 429 where too many wait already, 503 where none was free in time."""
        if self._free.locked() and self.waiting >= self._limits.waiting:
            line = f"{self.count} conversations are under way and {self.waiting} wait already; ask again later"
            raise Refused(429, line, headers=SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._free.acquire()
        except TimeoutError:
            line = f"no place was free within {self._limits.seconds:g} seconds; ask again later"
            raise Refused(503, line, headers=SOON) from None
        finally:
            self.waiting -= 1
        self.taken += 1
        self.given += 1

    def give_back(self) -> None:
        """A seat is free again."""
        self.taken -= 1
        self._free.release()
