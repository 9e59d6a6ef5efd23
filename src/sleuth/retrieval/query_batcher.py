"""Deduplication, caching and batching of queries: siblings of a group often search for the same words at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from sleuth.types import Passage, RetrievalFailed

CACHED_ANSWERS = 8192

Answer = list[Passage] | RetrievalFailed
"""Passages, or the failure."""

SearchFunction = Callable[[Sequence[str], int], Awaitable[Sequence[Answer]]]
"""Returns at most k passages, or a failure, for each of several distinct queries."""


class QueryBatcher:
    """Calls a slow search function once for each (query, k).

    At most `batches_at_once` calls run at a time, each of at most `batch_size` queries: what arrives meanwhile waits,
    and goes together into the next one. A query in flight is awaited and a recent one answered from a cache. A waiting
    query whose callers were all cancelled is not sent. A failure reaches all callers and is not cached.
    """

    def __init__(self, search: SearchFunction, batch_size: int, batches_at_once: int = 1) -> None:
        self._search = search
        self._batch_size = batch_size
        self._batches_at_once = batches_at_once
        self._cache: OrderedDict[tuple[str, int], tuple[Passage, ...]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forget_loop()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another `asyncio.run`: the last one's tasks are gone
            self._loop = loop
            self._forget_loop()
        answers: dict[str, tuple[Passage, ...]] = {}
        pending: dict[str, _Pending] = {}
        for query in dict.fromkeys(queries):
            if (query, k) in self._cache:
                self._cache.move_to_end((query, k))
                answers[query] = self._cache[query, k]
            else:
                pending[query] = self._pending(query, k, loop)
                pending[query].callers += 1
        try:
            found = await asyncio.gather(*(asyncio.shield(one.answer) for one in pending.values()))
        finally:
            for query, one in pending.items():
                one.callers -= 1
                if not one.callers:
                    self._give_up(query, k)
        answers |= dict(zip(pending, found, strict=True))
        return [list(answers[query]) for query in queries]

    def _forget_loop(self) -> None:
        self._in_flight: dict[tuple[str, int], _Pending] = {}
        self._waiting: dict[int, dict[str, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _pending(self, query: str, k: int, loop: asyncio.AbstractEventLoop) -> _Pending:
        """The query in flight, or a new one that waits to be sent."""
        if (query, k) not in self._in_flight:
            self._in_flight[query, k] = _Pending(loop.create_future())
            if not self._waiting:
                loop.call_soon(self._send)  # not at once: others of this round of the loop go along
            self._waiting.setdefault(k, {})[query] = None
        return self._in_flight[query, k]

    def _give_up(self, query: str, k: int) -> None:
        """Frees the place of a query that still waits, and that nobody wants any more."""
        if query in (waiting := self._waiting.get(k, {})):
            del waiting[query]
            self._in_flight.pop((query, k)).answer.cancel()
            if not waiting:
                del self._waiting[k]

    def _send(self) -> None:
        while self._waiting and len(self._tasks) < self._batches_at_once:
            k = next(iter(self._waiting))
            waiting = self._waiting.pop(k)
            queries = list(islice(waiting, self._batch_size))
            for query in queries:
                del waiting[query]
            if waiting:
                self._waiting[k] = waiting  # behind those of another k
            task = asyncio.ensure_future(self._fetch(queries, k))
            self._tasks.add(task)  # the loop itself keeps only a weak reference
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda done: self._send())

    async def _fetch(self, queries: Sequence[str], k: int) -> None:
        try:
            answers: Sequence[list[Passage] | Exception] = await self._search(queries, k)
        except Exception as error:  # reaches the callers
            answers = [error for _ in queries]
        except BaseException:
            for query in queries:
                self._in_flight.pop((query, k)).answer.cancel()
            raise
        for query, answer in zip(queries, answers, strict=True):
            future = self._in_flight.pop((query, k)).answer
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # marks it as retrieved, as all waiters may be gone
            else:
                self._cache[query, k] = tuple(answer)
                future.set_result(tuple(answer))
        while len(self._cache) > CACHED_ANSWERS:
            self._cache.popitem(last=False)


@dataclass(slots=True)
class _Pending:
    """A query that waits or is being searched, and how many callers want it."""

    answer: asyncio.Future[tuple[Passage, ...]]
    callers: int = 0
