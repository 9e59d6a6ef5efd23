"""Answers that take their time: a stream that ends with whoever reads it, and waiting for no one who has left."""

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
"""A stream is nothing to keep; proxies that gather answers are told not to."""


class ClientLeft(Exception):  # noqa: N818
    """Nobody waits for the answer any more."""


class EventStream(StreamingResponse):
    """Server-sent events. Whatever ends it closes `events`: their end, a client who leaves, or `seconds` in which one
    has not read them."""

    def __init__(self, events: AsyncGenerator[str, None], seconds: float) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events = events
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):  # the connection ends with the answer, which has no end of its own
            async with aclosing(self._events), asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)


async def unless_left(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` comes to. If the client leaves before, it is cancelled; raises `ClientLeft`."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    """Its body has been read: what still comes from a client is that it has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
