"""Connections to servers that are asked many things at once."""

from __future__ import annotations

import ssl
import time
from collections import defaultdict, deque
from functools import cache

import httpx

IDLE_SECONDS = 2.0
"""After which a connection is not used again: vLLM's, SGLang's and our servers close it after five, and a request that
is on its way at that moment is lost."""


class Connections(httpx.AsyncBaseTransport):
    """As many connections as requests are under way, each with one request at a time. The one that was used last is
    used first. An answer is read whole before it is handed out. Belongs to one event loop.

    httpx's own pool looks at every pair of its connections whenever a request begins or ends. With 256 under way that
    is more work than a core can do, and answers that are there are read too late.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[bytes, bytes, int | None], deque[tuple[float, httpx.AsyncHTTPTransport]]]
        self._idle = defaultdict(deque)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx. A connection whose request failed or was given up is closed. (One that is given up within its TLS
        handshake is httpcore's, which leaves that to the garbage collector.)"""
        url = request.url
        idle = self._idle[url.raw_scheme, url.raw_host, url.port]
        while idle and idle[0][0] < time.monotonic() - IDLE_SECONDS:
            _, old = idle.popleft()
            await old.aclose()
        connection = idle.pop()[1] if idle else _connection()
        try:
            answer = await _whole(await connection.handle_async_request(request))
        except BaseException:  # also where the caller gave up: until it is collected the socket would stay open
            await connection.aclose()
            raise
        idle.append((time.monotonic(), connection))
        return answer

    async def aclose(self) -> None:
        """Hang up all that is idle."""
        for idle in self._idle.values():
            while idle:
                await idle.pop()[1].aclose()


async def _whole(response: httpx.Response) -> httpx.Response:
    """The same answer, of which nothing is on its way any more."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    content = b"".join([part async for part in response.stream])
    await response.aclose()
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(content),
        extensions=response.extensions,
    )


def _connection() -> httpx.AsyncHTTPTransport:
    """A pool of one."""
    return httpx.AsyncHTTPTransport(
        verify=_certificates(),
        trust_env=False,
        limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS),
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Those that everybody trusts; reading them takes longer than many a request."""
    return httpx.create_ssl_context(trust_env=False)
