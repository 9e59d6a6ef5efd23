from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from sleuth.judges.pool import FIRST, Pace


def after(pace: Pace, calls: int, failed: int = 0) -> int:
    """The seats after so many calls, the failed ones first."""
    for number in range(calls):
        pace.ended(well=number >= failed)
    return pace.slots


def test_a_pace_doubles_until_failures_halve_it_and_then_grows_by_steps() -> None:
    pace = Pace(256)
    assert [pace.slots, after(pace, 16), after(pace, 32), after(pace, 64)] == [FIRST, 32, 64, 128]
    assert after(pace, 128, failed=20) == 64  # 15.6 %
    assert after(pace, 64, failed=9) == 96  # 14.1 %; 256 / 8 more
    assert [after(pace, pace.slots) for _ in range(8)][-1] == 256


def test_single_failures_do_not_slow_it_and_a_server_that_is_down_leaves_one_seat() -> None:
    pace = Pace(256)
    for _ in range(40):
        after(pace, pace.slots, failed=pace.slots // 10)
    assert pace.slots == 256
    for _ in range(10):
        after(pace, pace.slots, failed=pace.slots)
    assert pace.slots == 1
    assert after(pace, 1) > 1


def test_no_more_are_seated_than_there_are_seats_and_in_the_order_they_came() -> None:
    async def run() -> tuple[list[int], int]:
        pace, seated, most = Pace(3), [], 0

        async def sit(number: int) -> None:
            nonlocal most
            async with pace.slot():
                seated.append(number)
                most = max(most, pace.taken)
                await asyncio.sleep(0)

        await asyncio.gather(*map(sit, range(20)))
        assert pace.taken == 0
        return seated, most

    assert asyncio.run(run()) == ([*range(20)], 3)


def test_one_who_gives_up_waiting_takes_no_seat_with_it() -> None:
    async def run() -> int:
        pace = Pace(1)

        async def sit() -> None:
            async with pace.slot():
                await asyncio.sleep(60)

        async with AsyncExitStack() as first:
            await first.enter_async_context(pace.slot())
            waiting = [asyncio.create_task(sit()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        waiting[1].cancel()  # at the moment it is called
        await asyncio.sleep(0.01)
        assert pace.taken == 1
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return pace.taken

    assert asyncio.run(run()) == 0
