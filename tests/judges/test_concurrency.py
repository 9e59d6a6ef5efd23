from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from sleuth.judges.pool import INITIAL_SLOTS, AdaptiveConcurrency


def slots_after(limit: AdaptiveConcurrency, calls: int, failed: int = 0) -> int:
    """The slots after `calls` calls, the failed ones first."""
    for number in range(calls):
        limit.record(succeeded=number >= failed)
    return limit.slots


def test_slots_double_until_failures_halve_them_and_then_grow_by_steps() -> None:
    limit = AdaptiveConcurrency(256)
    assert [limit.slots, slots_after(limit, 16), slots_after(limit, 32), slots_after(limit, 64)] == [
        INITIAL_SLOTS,
        32,
        64,
        128,
    ]
    assert slots_after(limit, 128, failed=20) == 64  # 15.6 %
    assert slots_after(limit, 64, failed=9) == 96  # 14.1 %; 256 / 8 more
    assert [slots_after(limit, limit.slots) for _ in range(8)][-1] == 256


def test_single_failures_keep_the_slots_and_a_server_that_is_down_leaves_one() -> None:
    limit = AdaptiveConcurrency(256)
    for _ in range(40):
        slots_after(limit, limit.slots, failed=limit.slots // 10)
    assert limit.slots == 256
    for _ in range(10):
        slots_after(limit, limit.slots, failed=limit.slots)
    assert limit.slots == 1
    assert slots_after(limit, 1) > 1


def test_at_most_as_many_calls_as_slots_run_and_they_start_in_order() -> None:
    async def run() -> tuple[list[int], int]:
        limit, started, peak = AdaptiveConcurrency(3), [], 0

        async def call(number: int) -> None:
            nonlocal peak
            async with limit.slot():
                started.append(number)
                peak = max(peak, limit.taken)
                await asyncio.sleep(0)

        await asyncio.gather(*map(call, range(20)))
        assert limit.taken == 0
        return started, peak

    assert asyncio.run(run()) == ([*range(20)], 3)


def test_a_cancelled_waiter_keeps_no_slot() -> None:
    async def run() -> int:
        limit = AdaptiveConcurrency(1)

        async def call() -> None:
            async with limit.slot():
                await asyncio.sleep(60)

        async with AsyncExitStack() as first:
            await first.enter_async_context(limit.slot())
            waiting = [asyncio.create_task(call()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        waiting[1].cancel()  # at the moment of its admission
        await asyncio.sleep(0.01)
        assert limit.taken == 1
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return limit.taken

    assert asyncio.run(run()) == 0
