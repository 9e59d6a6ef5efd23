"""Requests that are too big or never end are turned away before anybody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.serve.http.limits import Limits

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
