"""An httpx transport for many concurrent requests."""

from __future__ import annotations

import ssl
import time
from collections import defaultdict, deque
from functools import cache
from typing import Any

import httpx

from sleuth.variables import ANSWER, CLIENT_KEY_VARIABLE, key_in

IDLE_SECONDS = 2.0
"""Connections idle for longer are not reused: vLLM's, SGLang's and our servers close them after five seconds, and a
request sent at that moment is lost."""

ENCODINGS = ("identity", "gzip", "deflate")
ACCEPTED = ", ".join(ENCODINGS[1:])
"""What requests ask for: httpx would ask for whatever is installed."""
REPLACED = (b"content-encoding", b"content-length", b"transfer-encoding")


class Connections(httpx.AsyncBaseTransport):
    """One connection per concurrent request, reused most recent first. Answers are read completely before they are
    returned, and no further than `variables.ANSWER`. Belongs to one event loop.

    httpx's own pool compares every pair of its connections whenever a request begins or ends. With 256 in flight that
    saturates a core, and answers are read too late.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[bytes, bytes, int | None], deque[tuple[float, httpx.AsyncHTTPTransport]]]
        self._idle = defaultdict(deque)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx. The connection of a failed or cancelled request is closed. (During its TLS handshake it belongs to
        httpcore, which leaves that to the garbage collector.)"""
        request.headers["accept-encoding"] = ACCEPTED
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
    """The same response with its body read and decompressed. Raises httpx.DecodingError if it is too large."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    require_bounded_encoding(response)
    body, most = bytearray(), ANSWER.bytes
    encoded = "content-encoding" in response.headers
    async for part in response.aiter_bytes() if encoded else response.stream:
        body += part
        if len(body) > most:
            raise httpx.DecodingError(f"the answer is {ANSWER.exceeded()}")
    await response.aclose()
    return _with_body(response, bytes(body))


class BoundedTransport(httpx.HTTPTransport):
    """For single requests outside of an event loop: answers are read completely, and bounded, as by `Connections`."""

    def __init__(self) -> None:
        super().__init__(verify=_certificates(), trust_env=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        request.headers["accept-encoding"] = ACCEPTED
        response = super().handle_request(request)
        require_bounded_encoding(response)
        body, most = bytearray(), ANSWER.bytes
        try:
            for part in response.iter_bytes():
                body += part
                if len(body) > most:
                    raise httpx.DecodingError(f"the answer is {ANSWER.exceeded()}")
        finally:
            response.close()
        return _with_body(response, bytes(body))


def key_headers() -> dict[str, str]:
    """The headers with the key for the servers that a person names; empty without a key."""
    key = key_in(CLIENT_KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def bounded_client(**options: Any) -> httpx.Client:
    """A client with `BoundedTransport`; `options` are httpx's."""
    return httpx.Client(transport=BoundedTransport(), trust_env=False, **options)


def require_bounded_encoding(response: httpx.Response) -> None:
    """Raises httpx.DecodingError unless a small part of the body can only decompress to a small text: other encodings,
    and several on top of each other, make gigabytes of a kilobyte."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        raise httpx.DecodingError(f"the answer is encoded as {encoding[:40]!r}; expected {', '.join(ENCODINGS)}")


def _with_body(response: httpx.Response, body: bytes) -> httpx.Response:
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in REPLACED]
    return httpx.Response(
        response.status_code, headers=headers, stream=httpx.ByteStream(body), extensions=response.extensions
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
