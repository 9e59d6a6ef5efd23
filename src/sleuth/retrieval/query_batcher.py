"""Deduplication, caching and batching of queries: siblings of a group often search for the same words at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from sleuth.types import Passage, RetrievalFailed

CACHED_ANSWERS = 8192

Answer = list[Passage] | RetrievalFailed
"""Passages, or the failure."""

SearchFunction = Callable[[Sequence[str], int], Awaitable[Sequence[Answer]]]
"""Returns at most k passages, or a failure, for each of several distinct queries."""


class QueryBatcher:
    """Calls a slow search function once for each (query, k).

    A query in flight is awaited and a recent one answered from a cache; new ones, of all calls that arrive in one round
    of the event loop, are sent in batches of at most `batch_size`. A failure reaches all waiters and is not cached.
    """

    def __init__(self, search: SearchFunction, batch_size: int) -> None:
        self._search = search
        self._batch_size = batch_size
        self._cache: OrderedDict[tuple[str, int], tuple[Passage, ...]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: dict[tuple[str, int], asyncio.Future[tuple[Passage, ...]]] = {}
        self._waiting: dict[int, list[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another `asyncio.run`: the last one's tasks are gone
            self._loop, self._in_flight, self._waiting, self._tasks = loop, {}, {}, set()
        for query in dict.fromkeys(queries):
            if (query, k) not in self._cache and (query, k) not in self._in_flight:
                self._in_flight[query, k] = loop.create_future()
                if not self._waiting:
                    loop.call_soon(self._send)
                self._waiting.setdefault(k, []).append(query)
        pending = {query: self._answer(query, k) for query in dict.fromkeys(queries)}
        answers = dict(zip(pending, await asyncio.gather(*pending.values()), strict=True))
        return [list(answers[query]) for query in queries]

    async def _answer(self, query: str, k: int) -> tuple[Passage, ...]:
        if (query, k) in self._cache:
            self._cache.move_to_end((query, k))
            return self._cache[query, k]
        return await asyncio.shield(self._in_flight[query, k])  # cancelling one waiter leaves the others

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for k, queries in waiting.items():
            for start in range(0, len(queries), self._batch_size):
                task = asyncio.ensure_future(self._fetch(queries[start : start + self._batch_size], k))
                self._tasks.add(task)  # the loop itself keeps only a weak reference
                task.add_done_callback(self._tasks.discard)

    async def _fetch(self, queries: Sequence[str], k: int) -> None:
        futures = [self._in_flight[query, k] for query in queries]
        try:
            answers = await self._search(queries, k)
        except BaseException as error:
            for query, future in zip(queries, futures, strict=True):
                del self._in_flight[query, k]
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                else:
                    _fail(future, error)
            if not isinstance(error, Exception):
                raise
            return
        for query, future, answer in zip(queries, futures, answers, strict=True):
            del self._in_flight[query, k]
            if isinstance(answer, RetrievalFailed):
                _fail(future, answer)
            else:
                self._cache[query, k] = tuple(answer)
                future.set_result(tuple(answer))
        while len(self._cache) > CACHED_ANSWERS:
            self._cache.popitem(last=False)


def _fail(future: asyncio.Future[tuple[Passage, ...]], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # marks it as retrieved, as all waiters may be gone
