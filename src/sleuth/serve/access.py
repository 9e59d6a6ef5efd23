"""Who may ask a server, how much at once, and how large a body: the rules of a server, the gate that keeps them, and
what its pages may load."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.serve.refused import SOON, Refused

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(:[0-9]*)?")
OTHER_SITES = (b"cross-site", b"same-site")
READING = ("GET", "HEAD")
HEALTH = "/health"
"""Whether a server works is answered however many requests it has; with a body it is a request like others."""
CLOSE = {"connection": "close"}  # the rest of an unread body must not be parsed as the next request


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules of one server. `hosts` are the names it answers to (None: any), `key` the one that requests must carry
    (None: none)."""

    hosts: Collection[str] | None = None
    key: str | None = None
    open_paths: Collection[str] = (HEALTH,)
    """What may be read without the key."""

    def check(self, scope: Scope) -> None:
        """Raises `Refused`."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and (not (match := HOST.fullmatch(host)) or match["name"] not in self.hosts):
            line = f"this server answers to {', '.join(sorted(self.hosts))} and was asked for as {host[:100]!r}"
            raise Refused(403, line, headers=CLOSE)
        if _is_foreign(scope["method"], headers, host):
            raise Refused(403, "a page of another site may not ask this server", headers=CLOSE)
        is_open = scope["method"] in READING and scope["path"] in self.open_paths
        if self.key is not None and not is_open and not _carries(headers, self.key):
            line = "expected the header `Authorization: Bearer KEY` with this server's key"
            raise Refused(401, line, headers={"www-authenticate": "Bearer", **CLOSE})


def known_names(host: str) -> frozenset[str] | None:
    """The accepted names of a server at `host`; None (any) if other machines can reach it by unknown names."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return LOOPBACK | {host}
    return None


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


class Gate:
    """Middleware that enforces `access`, answers 503 to more than `most` requests at once, streams included, and reads
    each body within `limits`. `refusal` makes an answer of an error. What POST sends to a path of `fast` is answered
    here: its function makes the content of a JSON answer of the body, or raises HTTPException."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        limits: Limits,
        refusal: Callable[[Any], Response] = Refused.response,
        most: int | None = None,
        fast: Mapping[str, Callable[[bytes], Awaitable[object]]] | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._refusal = refusal
        self._most = most
        self._fast = fast or {}
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        is_limited = self._most is not None and (scope["path"] != HEALTH or _has_body(scope))
        try:
            self._access.check(scope)
            if self._most is not None and is_limited and self._in_progress >= self._most:
                raise Refused(503, f"{self._most} requests are running; retry later", headers=SOON | CLOSE)
        except Refused as refused:
            return await self._refusal(refused)(scope, receive, send)
        self._in_progress += is_limited
        try:
            await self._answer(scope, receive, send)
        finally:
            self._in_progress -= is_limited

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._fast.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            body = await receive_body(scope, receive, self._limits)
            content = None if answer is None else to_json(await answer(body))
        except HTTPException as error:
            return await self._refusal(error)(scope, receive, send)
        if content is not None:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            return await send({"type": "http.response.body", "body": content})
        message: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return message.pop() if message else await receive()

        await self._app(scope, replay, send)


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _is_foreign(method: str, headers: Mapping[bytes, bytes], host: str) -> bool:
    """Whether a browser sent this for a page of another site, which may follow links here and nothing else. Without a
    body or with one of plain text, a page may post anywhere (a "simple request")."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site in OTHER_SITES and not (method in READING and headers.get(b"sec-fetch-mode") == b"navigate")
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1").lower().rpartition("//")[2] != host


def _carries(headers: Mapping[bytes, bytes], key: str) -> bool:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())


async def receive_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body of a request; empty if the client disconnected. Raises `Refused` 408 and 413.

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
        line = f"the body did not arrive within {limits.upload_seconds:g} seconds"
        raise Refused(408, line, headers=CLOSE) from None
    if body is None:
        line = f"the body is larger than {limits.body_bytes:,} bytes; send less at once"
        raise Refused(413, line, headers=CLOSE)
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


POLICY = (
    "default-src 'none'; script-src 'self'; style-src {style}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of a page: it may load and send nothing elsewhere."""
FILE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}


def file_route(path: str, content: bytes, kind: str, *, style: str = "'self'") -> Route:
    """The route of a page's file of this media type; `style` are the sources of styles."""
    headers = {"content-security-policy": POLICY.format(style=style), **FILE_HEADERS}

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=headers)

    return Route(path, serve)
