"""The way to what is asked thousands of times a second: no router, no middleware, no request object.

What a framework does around an answer takes longer than an answer from a small index, so these paths are served as
plain ASGI, and everything else by the application behind.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sleuth.serve.http.body_limit import read_whole
from sleuth.serve.http.counters import Counters
from sleuth.serve.http.limits import Limits
from sleuth.serve.retriever.wire import BodyError

Answer = Callable[[bytes], Awaitable[object]]
"""From a body to what is sent back as JSON. May raise BodyError and HTTPException."""


class FastPathApp(FastAPI):
    """A FastAPI application some of whose POST paths (`straight`) are answered before it sees them."""

    def serve_fast(self, straight: Mapping[str, Answer], limits: Limits, counters: Counters) -> None:
        """Answer `straight` from now on. What is turned away counts too."""
        self._straight = dict(straight)
        self._limits = limits
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._straight.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if answer is None:
            return await super().__call__(scope, receive, send)
        started = time.perf_counter()
        status, headers = 200, {}
        try:
            told = await answer(await read_whole(scope, receive, self._limits))
        except BodyError as error:
            status, told = 422, {"detail": str(error)}
        except HTTPException as error:
            status, told, headers = error.status_code, {"detail": error.detail}, error.headers or {}
        body = to_json(told)
        shown = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        shown += [(name.encode(), value.encode()) for name, value in headers.items()]
        self._counters.answered(scope["path"], status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": status, "headers": shown})
        await send({"type": "http.response.body", "body": body})
