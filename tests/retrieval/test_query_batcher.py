"""What arrives while a search runs goes together into the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sleuth.retrieval.query_batcher import QueryBatcher
from sleuth.types import Passage


class SlowIndex:
    """Answers when it is let go on; `scans` are the queries of each search."""

    def __init__(self) -> None:
        self.scans: list[tuple[list[str], int]] = []
        self.gate = asyncio.Event()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.scans.append((list(queries), k))
        await self.gate.wait()
        return [[Passage(id=query, title="", text=str(k))] for query in queries]


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_queries_that_arrive_during_a_search_share_the_next_up_to_the_bound() -> None:
    async def play() -> None:
        index = SlowIndex()
        batcher = QueryBatcher(index.search, batch_size=4)
        asked = []
        for number in range(7):
            asked.append(asyncio.ensure_future(batcher.search([f"q{number}"], 3)))
            await rounds()
        assert [queries for queries, _ in index.scans] == [["q0"]]
        index.gate.set()
        answers = await asyncio.gather(*asked)
        assert [queries for queries, _ in index.scans] == [["q0"], ["q1", "q2", "q3", "q4"], ["q5", "q6"]]
        assert [passages[0].id for [passages] in answers] == [f"q{number}" for number in range(7)]

    asyncio.run(play())


def test_queries_of_another_k_take_turns_and_wait_for_nobody_forever() -> None:
    async def play() -> None:
        index = SlowIndex()
        batcher = QueryBatcher(index.search, batch_size=2)
        first = asyncio.ensure_future(batcher.search(["a"], 1))
        await rounds()
        more = [asyncio.ensure_future(batcher.search([f"b{n}" for n in range(3)], 1))]
        await rounds()
        more.append(asyncio.ensure_future(batcher.search(["c"], 9)))
        await rounds()
        index.gate.set()
        await asyncio.gather(first, *more)
        assert index.scans == [(["a"], 1), (["b0", "b1"], 1), (["c"], 9), (["b2"], 1)]

    asyncio.run(play())


def test_a_cancelled_query_frees_its_place_unless_another_caller_wants_it() -> None:
    async def play() -> None:
        index = SlowIndex()
        batcher = QueryBatcher(index.search, batch_size=2)
        running = asyncio.ensure_future(batcher.search(["running"], 1))
        await rounds()
        gone, shared = (asyncio.ensure_future(batcher.search([text], 1)) for text in ("gone", "shared"))
        sibling = asyncio.ensure_future(batcher.search(["shared"], 1))
        last = asyncio.ensure_future(batcher.search(["last"], 1))
        await rounds()
        for task in (gone, shared, running):
            task.cancel()
        await rounds()
        index.gate.set()
        assert (await sibling)[0][0].id == "shared"
        await last
        assert [queries for queries, _ in index.scans] == [["running"], ["shared", "last"]]
        [[again]] = await batcher.search(["gone"], 1)  # asked anew, it is found
        assert again.id == "gone"

    asyncio.run(play())
