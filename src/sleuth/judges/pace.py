"""How many questions a judge is asked at once: as many as it answers well, found out as it goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

FIRST = 16
TOLERATED = 0.15
"""The share of failures that a pace is kept at: single ones happen, a server that is overrun fails by the dozen."""
GROWTH = 1 / 8  # of the greatest pace, after the first retreat


class Pace:
    """Seats for what is under way, at most `most`. Each time as many calls have ended as there are seats, their number
    is halved if more than `TOLERATED` of them failed, else it grows: doubled until the first retreat, then by a fixed
    step. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.slots = min(FIRST, most)
        self.taken = 0
        self._doubles = True
        self._ended = self._failed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a seat, first come, first served, and keep it while the block runs."""
        await self._take()
        try:
            yield
        finally:
            self._leave()

    def ended(self, well: bool) -> None:
        """A call has ended."""
        self._ended += 1
        self._failed += not well
        if self._ended < self.slots:
            return
        if self._failed > TOLERATED * self._ended:
            self.slots, self._doubles = max(1, self.slots // 2), False
        else:
            step = self.slots if self._doubles else max(1, int(self.most * GROWTH))
            self.slots = min(self.most, self.slots + step)
        self._ended = self._failed = 0
        self._admit()

    async def _take(self) -> None:
        if self.taken < self.slots and not self._waiting:
            self.taken += 1
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # was called at the very moment of giving up
                self._leave()
            raise

    def _leave(self) -> None:
        self.taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken < self.slots:
            called = self._waiting.popleft()
            if not called.done():
                self.taken += 1
                called.set_result(None)
