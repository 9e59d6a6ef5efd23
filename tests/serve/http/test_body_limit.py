from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from sleuth.serve.http.limits import Limits, receive_body

SCOPE = {"type": "http", "headers": [(b"content-length", b"4")]}


async def slow_parts(*pauses: float) -> AsyncIterator[Message]:
    """Two bytes after each pause, and no end that is said."""
    for pause in pauses:
        await asyncio.sleep(pause)
        yield {"type": "http.request", "body": b"ab", "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


def read(seconds: float, *pauses: float) -> bytes:
    async def whole() -> bytes:
        return await receive_body(SCOPE, slow_parts(*pauses).__anext__, Limits(upload_seconds=seconds))

    return asyncio.run(whole())


@pytest.mark.parametrize("pauses", [(0, 0), (0.01, 0), (0, 0.01)])
def test_a_body_is_waited_for_wherever_it_pauses(pauses: tuple[float, ...]) -> None:
    assert read(30, *pauses) == b"abab"


@pytest.mark.parametrize("pauses", [(30,), (0, 30), (0.01, 30)])
def test_a_body_that_pauses_for_too_long_is_refused(pauses: tuple[float, ...]) -> None:
    with pytest.raises(HTTPException) as refused:
        read(0.1, *pauses)
    assert refused.value.status_code == 408


def test_a_body_that_has_arrived_sets_no_timer() -> None:
    async def timers() -> int:
        loop = asyncio.get_running_loop()
        await receive_body(SCOPE, slow_parts().__anext__, Limits(upload_seconds=30))
        await asyncio.sleep(0)
        return len(loop._scheduled)  # pyright: ignore[reportAttributeAccessIssue]

    assert asyncio.run(timers()) == 0
