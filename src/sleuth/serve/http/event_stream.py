"""Long answers: an event stream, and work, that end when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Streams must not be cached, nor buffered by proxies."""


class ClientDisconnected(Exception):  # noqa: N818
    """The client has disconnected before its answer."""


class EventStream(StreamingResponse):
    """Server-sent events. `events` is closed at its end, when the client disconnects, or after `seconds`."""

    def __init__(self, events: AsyncGenerator[str, None], seconds: float) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events = events
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):  # closing the connection ends the stream
            async with aclosing(self._events), asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. If the client disconnects first, cancels it and raises `ClientDisconnected`."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    """Returns when the client has disconnected. Its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
