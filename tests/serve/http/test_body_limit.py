from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from sleuth.serve.access import Access, Gate, Limits, receive_body

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


def test_health_is_answered_beside_any_number_of_requests() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(path: str, *headers: tuple[bytes, bytes]) -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        await Gate(app, access=Access(), limits=Limits(), most=0)(scope, receive, send)
        return sent[0]["status"]

    assert asyncio.run(status("/metrics")) == 503
    assert asyncio.run(status("/health")) == 200
    assert asyncio.run(status("/health", (b"content-length", b"1000"))) == 503
