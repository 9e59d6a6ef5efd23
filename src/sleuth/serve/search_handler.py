"""The index of a server, opened in a thread so that its progress can be reported, and the searches in it, for every
protocol that the server speaks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TypeVar

from starlette.exceptions import HTTPException

from sleuth.retrieval.index_card import read_card
from sleuth.retrieval.open_index import Index, open_index, require_device
from sleuth.retrieval.vectors import Device
from sleuth.serve.access import Limits
from sleuth.types import Passage

TOP_K = 3  # passages of a query, by default
MAX_QUERY_CHARACTERS = 8000  # 500 tokens, where published runs cut a turn, are about 2,500
QUERIES_PER_TURN = 8  # of one request, before other requests get a turn
MIN_SECONDS_FOR_THREAD = 0.005  # CPU seconds per query; a thread costs half a millisecond on busy cores
OPENING_POLL_SECONDS = 0.02
BLOCK = 8 * 2**20  # bytes
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # of the machine

Answer = TypeVar("Answer")


class IndexLoader:
    """Reads the files of an index once, so that the first queries do not wait for the disk, then opens it, in a thread.

    `index` is None until then; `progress` goes from 0 to 1; `error` says why it could not be opened.
    """

    def __init__(self, folder: Path, device: Device = "cpu") -> None:
        """Raises SleuthError if `folder` has no index, or none for this device."""
        self.card = read_card(folder)
        require_device(folder, device)
        self.index: Index | None = None
        self.progress = 0.0
        self.error = ""
        self._folder = folder
        self._device: Device = device

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Starts the thread, a daemon, and calls `failed` if the index cannot be opened."""
        Thread(target=self._open, args=(failed,), name="opening", daemon=True).start()

    def _open(self, failed: Callable[[], None]) -> None:
        try:
            files = list(_files(self._folder))
            total = min(sum(file.stat().st_size for file in files), MEMORY // 2) or 1
            read = 0
            for file in files:
                with file.open("rb") as content:
                    while read < total and (size := len(content.read(BLOCK))):  # more would evict what was read first
                        read += size
                        self.progress = min(0.99, read / total)
            index = open_index(self._folder, self._device)
            index.find(["warm up"], 1)
            self.index, self.progress = index, 1.0
        except Exception as error:  # of any kind: clients wait for the outcome
            self.error = " ".join(str(error).split()) or type(error).__name__
            failed()


def _files(folder: Path) -> Iterator[Path]:
    """The files of an index and its inner indexes, and the outside files that their cards name."""
    for path in sorted(folder.rglob("*")):
        if path.name == "card.json":
            card = read_card(path.parent)
            yield from (Path(name) for name in (card.vectors, card.passages) if name and Path(name).is_file())
        if path.is_file():
            yield path


class RequestHandler:
    """Answers queries from the index, inline if they are fast, else in threads."""

    def __init__(self, loader: IndexLoader, limits: Limits) -> None:
        self.waiting = 0
        self._loader = loader
        self._limits = limits
        self._seconds_per_query = MIN_SECONDS_FOR_THREAD  # until it is known
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "search")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Passages for each query. Raises HTTPException 503 and 504."""
        index = self._index()
        self._require_room()
        if index.batch == 1 and len(queries) <= QUERIES_PER_TURN and self._seconds_per_query < MIN_SECONDS_FOR_THREAD:
            return self._turn(index, queries, k)  # too fast to need a timeout
        return await self._in_time(self._find(index, queries, k))

    async def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, None if there is none. Raises HTTPException 503 and 504."""
        index = self._index()
        self._require_room()
        return await self._in_time(asyncio.get_running_loop().run_in_executor(self._threads, index.passage, passage_id))

    async def wait_for_index(self) -> None:
        """Returns once the index is open or cannot be opened, or after the longest time of an answer."""
        self._require_room()
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                while self._loader.index is None and not self._loader.error:
                    await asyncio.sleep(OPENING_POLL_SECONDS)
        except TimeoutError:
            pass  # the search that follows says how far it is
        finally:
            self.waiting -= 1

    def _index(self) -> Index:
        if self._loader.index is None:
            state = self._loader.error or f"the index is being opened, {self._loader.progress:.0%} so far"
            raise HTTPException(503, state, headers={"retry-after": "2"})
        return self._loader.index

    def _require_room(self) -> None:
        if self.waiting >= self._limits.waiting:
            detail = f"{self._limits.waiting} requests are waiting; retry later"
            raise HTTPException(503, detail, headers={"retry-after": "1"})

    async def _in_time(self, answer: Awaitable[Answer]) -> Answer:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await answer
        except TimeoutError:
            raise HTTPException(
                504, f"no answer within {self._limits.seconds:g} seconds; ask for less at once"
            ) from None
        finally:
            self.waiting -= 1

    async def _find(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if index.batch > 1:  # such an index batches queries across requests, in a thread of its own
            return await index.search(queries, k)
        results: list[list[Passage]] = []
        for start in range(0, len(queries), QUERIES_PER_TURN):
            if start:
                await asyncio.sleep(0)  # lets other requests run, and the timeout fire
            turn = queries[start : start + QUERIES_PER_TURN]
            if self._seconds_per_query < MIN_SECONDS_FOR_THREAD:
                results += self._turn(index, turn, k)
            else:
                results += await asyncio.get_running_loop().run_in_executor(self._threads, self._turn, index, turn, k)
        return results

    def _turn(self, index: Index, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Results of a few queries. Their CPU time decides whether later ones run in a thread; wall time would seem
        slow on busy cores, where a thread costs most."""
        started = time.thread_time()
        results = index.find(queries, k)
        if queries:  # capped, so that one very long query does not dominate
            seconds = min((time.thread_time() - started) / len(queries), 2 * MIN_SECONDS_FOR_THREAD)
            self._seconds_per_query += 0.1 * (seconds - self._seconds_per_query)
        return results
