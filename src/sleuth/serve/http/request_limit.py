"""Requests beyond a number are turned away before anything is read of them."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.serve.http.admission import SOON
from sleuth.serve.http.body_limit import CLOSE
from sleuth.serve.http.refused import refusal


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
