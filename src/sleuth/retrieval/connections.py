"""An httpx transport for many concurrent requests."""

from __future__ import annotations

import ssl
import time
from collections import defaultdict, deque
from functools import cache

import httpx

IDLE_SECONDS = 2.0
"""Connections idle for longer are not reused: vLLM's, SGLang's and our servers close them after five seconds, and a
request sent at that moment is lost."""


class Connections(httpx.AsyncBaseTransport):
    """One connection per concurrent request, reused most recent first. Answers are read completely before they are
    returned. Belongs to one event loop.

    httpx's own pool compares every pair of its connections whenever a request begins or ends. With 256 in flight that
    saturates a core, and answers are read too late.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[bytes, bytes, int | None], deque[tuple[float, httpx.AsyncHTTPTransport]]]
        self._idle = defaultdict(deque)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx. The connection of a failed or cancelled request is closed. (During its TLS handshake it belongs to
        httpcore, which leaves that to the garbage collector.)"""
        url = request.url
        idle = self._idle[url.raw_scheme, url.raw_host, url.port]
        while idle and idle[0][0] < time.monotonic() - IDLE_SECONDS:
            _, old = idle.popleft()
            await old.aclose()
        connection = idle.pop()[1] if idle else _connection()
        try:
            answer = await _whole(await connection.handle_async_request(request))
        except BaseException:  # also on cancellation: the socket would stay open until collected
            await connection.aclose()
            raise
        idle.append((time.monotonic(), connection))
        return answer

    async def aclose(self) -> None:
        """Closes all idle connections."""
        for idle in self._idle.values():
            while idle:
                await idle.pop()[1].aclose()


async def _whole(response: httpx.Response) -> httpx.Response:
    """The same response with its body read."""
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
    """The default CA certificates, cached: reading them can take longer than a request."""
    return httpx.create_ssl_context(trust_env=False)
