"""Limits on requests: body size, upload time, concurrency, waiting."""

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
    """Limits on one request and on concurrency; the defaults are the retriever's."""

    body_bytes: int = 40 * 2**20
    """A little more than the largest number of queries of the largest length."""
    upload_seconds: float = 10.0
    """For a body to arrive."""
    seconds: float = 60.0
    """For an answer."""
    waiting: int = 1024
    """The largest number of waiting requests."""


def conversation_limits(*, seconds: float = 120.0, waiting: int = 256) -> Limits:
    """The limits of `sleuth serve`: a body is a question, or a prompt of some hundred thousand tokens."""
    return Limits(body_bytes=2**20, seconds=seconds, waiting=waiting)


SOON = {"retry-after": "1"}


class Admission:
    """A first-come semaphore of `count` places in one event loop. `admitted` is the total ever admitted."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.active = 0
        self.waiting = 0
        self.admitted = 0
        self._limits = limits
        self._free = asyncio.Semaphore(count)

    async def acquire(self) -> None:
        """Waits for a place. Raises `Refused`: 429 if too many wait already, 503 if none was free in time."""
        if self._free.locked() and self.waiting >= self._limits.waiting:
            line = f"{self.count} conversations are running and {self.waiting} are waiting; retry later"
            raise Refused(429, line, headers=SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._free.acquire()
        except TimeoutError:
            line = f"no slot was free within {self._limits.seconds:g} seconds; retry later"
            raise Refused(503, line, headers=SOON) from None
        finally:
            self.waiting -= 1
        self.active += 1
        self.admitted += 1

    def release(self) -> None:
        """Frees a place."""
        self.active -= 1
        self._free.release()


HEALTH = "/health"
"""Whether a server works is answered however many requests it has; with a body it is a request like others."""


class RequestLimit:
    """Middleware that answers 503 to more than `limit` concurrent requests, streams included, beside those that ask for
    `HEALTH`."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] == HEALTH and not _has_body(scope)):
            return await self._app(scope, receive, send)
        if self._in_progress >= self._limit:
            line = f"{self._limit} requests are running; retry later"
            return await refusal(503, line, {**SOON, **CLOSE})(scope, receive, send)
        self._in_progress += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_progress -= 1


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


CLOSE = {"connection": "close"}  # the rest of an unread body must not be parsed as the next request


class BodyLimit:
    """Middleware that reads a body of at most `limits.body_bytes` within `limits.upload_seconds` and passes it on in
    one message. `refusal` makes error answers from a status, a line and headers."""

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
            body = await receive_body(scope, receive, self._limits)
        except HTTPException as error:
            return await self._refusal(error.status_code, error.detail, error.headers or {})(scope, receive, send)
        message: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, lambda: _replay_body(message, receive), send)


async def receive_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body of a request; empty if the client disconnected. Raises HTTPException 408 and 413.

    Bodies mostly arrive with their head, so the timer is set only after one round of the event loop: it costs a quarter
    of a request to a small index.
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


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body; None if it is too large, empty if the client disconnected."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if length.isdigit() and int(length) > limit:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _replay_body(message: list[Message], receive: Receive) -> Message:
    return message.pop() if message else await receive()
