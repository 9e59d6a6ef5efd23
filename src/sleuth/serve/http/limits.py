"""What clients may take of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.serve.http.refused import Refused, refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take, and how many may come at once; the defaults are the retriever's."""

    body_bytes: int = 40 * 2**20
    """A little more than the most queries at their longest."""
    upload_seconds: float = 10.0
    """For a body to arrive."""
    seconds: float = 60.0
    """For an answer."""
    waiting: int = 1024
    """Requests that wait to be answered."""


def conversation_limits(*, seconds: float = 120.0, waiting: int = 256) -> Limits:
    """Of `sleuth serve`: a body holds a question, or a prompt of some hundred thousand tokens."""
    return Limits(body_bytes=2**20, seconds=seconds, waiting=waiting)


SOON = {"retry-after": "1"}


class Admission:
    """`count` seats, given in the order of asking, in one event loop. `taken` and `waiting` count people,
    `given` all that ever had one."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.taken = 0
        self.waiting = 0
        self.given = 0
        self._limits = limits
        self._free = asyncio.Semaphore(count)

    async def take(self) -> None:
        """Wait for a seat. Raises `Refused`: 429 where too many wait already, 503 where none was free in time."""
        if self._free.locked() and self.waiting >= self._limits.waiting:
            line = f"{self.count} conversations are under way and {self.waiting} wait already; ask again later"
            raise Refused(429, line, headers=SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._free.acquire()
        except TimeoutError:
            line = f"no place was free within {self._limits.seconds:g} seconds; ask again later"
            raise Refused(503, line, headers=SOON) from None
        finally:
            self.waiting -= 1
        self.taken += 1
        self.given += 1

    def give_back(self) -> None:
        """A seat is free again."""
        self.taken -= 1
        self._free.release()


class RequestLimit:
    """At most `most` requests under way at once, streams that are still read included; the next is 503, and may come
    again. A connection on which nothing is asked counts for nothing."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self._under_way >= self._most:
            line = f"{self._most} requests are under way; ask again later"
            return await refusal(503, line, {**SOON, **CLOSE})(scope, receive, send)
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


CLOSE = {"connection": "close"}  # what is left of a body that nobody reads must not be taken for the next request


class BodyLimit:
    """Collects a body of at most `limits.body_bytes` within `limits.upload_seconds`, then hands it on whole; `refusal`
    makes the answer to any other, of a status, a line and headers."""

    def __init__(
        self, app: ASGIApp, limits: Limits, refusal: Callable[[int, str, Mapping[str, str]], Response]
    ) -> None:
        self._app = app
        self._limits = limits
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await read_whole(scope, receive, self._limits)
        except HTTPException as error:
            return await self._refusal(error.status_code, error.detail, error.headers or {})(scope, receive, send)
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, lambda: _next(whole, receive), send)


async def read_whole(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body of a request; empty if the client left. Raises HTTPException 408 and 413.

    Mostly it has arrived with its head. A timer is set only where it has not, once the loop has gone round: a timer
    costs a quarter of all that is done here for a request to a small index.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as timeout:
            waits = loop.call_soon(lambda: timeout.reschedule(loop.time() + limits.upload_seconds))
            try:
                body = await _read(scope, receive, limits.body_bytes)
            finally:
                waits.cancel()
    except TimeoutError:
        detail = f"the body did not arrive within {limits.upload_seconds:g} seconds"
        raise HTTPException(408, detail, headers=CLOSE) from None
    if body is None:
        detail = f"the body is larger than {limits.body_bytes:,} bytes; send less at once"
        raise HTTPException(413, detail, headers=CLOSE)
    return body


async def _read(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """The body; None if it is too large, empty if the client left."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if said.isdigit() and int(said) > most:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _next(whole: list[Message], receive: Receive) -> Message:
    return whole.pop() if whole else await receive()
