"""Requests that are too big or never end are turned away before anybody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.serve.limits import Limits

LAST = {"connection": "close"}
"""Nobody reads the rest of a body that was turned away."""


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
            async with asyncio.timeout(self._limits.upload_seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            detail = f"the body did not arrive within {self._limits.upload_seconds:g} seconds"
            return await self._refusal(408, detail, LAST)(scope, receive, send)
        if body is None:
            detail = f"the body is larger than {self._limits.body_bytes:,} bytes; send less at once"
            return await self._refusal(413, detail, LAST)(scope, receive, send)
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, lambda: _next(whole, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if it is too large, empty if the client left."""
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if said.isdigit() and int(said) > self._limits.body_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b""
            body += message.get("body", b"")
            if len(body) > self._limits.body_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


async def _next(whole: list[Message], receive: Receive) -> Message:
    return whole.pop() if whole else await receive()
