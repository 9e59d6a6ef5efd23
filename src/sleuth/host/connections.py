"""HTTP requests to servers: many at once from an event loop, or single ones outside of one, with bounded answers."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sleuth.host.variables import ANSWER, CLIENT_KEY_VARIABLE, key_in

if TYPE_CHECKING:
    import aiohttp

IDLE_SECONDS = 2.0
"""Connections idle for longer are not reused: vLLM's, SGLang's and our servers close them after five seconds, and a
request sent at that moment is lost."""

ENCODINGS = ("identity", "gzip", "deflate")
ACCEPTED = ", ".join(ENCODINGS[1:])
"""What requests ask for: clients would ask for whatever is installed."""


class RequestFailedError(Exception):
    """No whole answer of a permitted size came; the server may have got the request."""


class UnreachableError(RequestFailedError):
    """There was no connection, so the server did not get the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's whole answer; `body` is decompressed, and names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError if the body is no JSON, RecursionError if it is nested too deeply."""
        return json.loads(self.body)

    def detail(self) -> str:
        """The beginning of the text, in one line."""
        return " ".join(self.body.decode(errors="replace").split())[:200]


async def ask(
    method: str,
    url: str,
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    connect_seconds: float | None = None,
) -> Answer:
    """The answer to one request, whatever its status; `body` is sent as JSON. Redirects are not followed, and the
    caller limits the time. Raises RequestFailedError, and ValueError for a URL or a body that cannot be sent.

    The requests of an event loop share its connections: one for each that is in flight. A request that is cancelled
    closes its own."""
    import aiohttp

    session = await _session()
    sent = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    kind = {} if body is None else {"content-type": "application/json"}
    try:
        async with session.request(
            method,
            url,
            data=None if sent is None else sent.encode(),
            params=params,
            headers={**kind, **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            allow_redirects=False,
        ) as response:
            found = {name.lower(): text for name, text in response.headers.items()}
            return Answer(response.status, found, await _body(response))
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from None
    except aiohttp.InvalidURL as error:
        raise ValueError(f"{error} is no URL") from None
    except aiohttp.ClientError as error:
        raise RequestFailedError(str(error) or type(error).__name__) from None


def ask_within(
    seconds: float,
    method: str,
    url: str,
    *,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """The answer to a request outside of an event loop. Raises RequestFailedError and ValueError as `ask` does, and
    TimeoutError if it is not there, to its last byte, within `seconds`."""

    async def answer() -> Answer:
        async with asyncio.timeout(seconds):
            return await ask(method, url, body=body, headers=headers)

    try:
        return asyncio.run(answer())
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None


_Session = AsyncGenerator["aiohttp.ClientSession", None]
_sessions: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, _Session]] = {}
"""Of the loops that run. Each loop closes and removes its own with its asynchronous generators, when it ends."""


async def _session() -> aiohttp.ClientSession:
    """The session of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        opened = _opened(loop)
        _sessions[loop] = await anext(opened), opened  # without a pause, so that there is one
    return _sessions[loop][0]


async def _opened(loop: asyncio.AbstractEventLoop) -> _Session:
    import aiohttp
    from aiohttp.connector import Connection

    class Response(aiohttp.ClientResponse):
        """Closes its connection after a failure: after an exception uvicorn (in vLLM, too) closes it without saying so,
        and the next request would be lost."""

        async def start(self, connection: Connection) -> aiohttp.ClientResponse:
            protocol = connection.protocol
            await super().start(connection)
            if self.status == HTTPStatus.INTERNAL_SERVER_ERROR and protocol is not None:
                protocol.force_close()
                if self.content.is_eof():  # it has been given back
                    protocol.close()
            return self

    async with aiohttp.ClientSession(
        response_class=Response,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": ACCEPTED},
        auto_decompress=False,
    ) as session:
        try:
            yield session
        finally:
            del _sessions[loop]


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The decompressed body. Raises RequestFailedError once it is too large."""
    encoding = ", ".join(response.headers.getall("content-encoding", ["identity"])).strip().lower()
    if refused := _refused_encoding(encoding):
        raise RequestFailedError(refused)
    body, most = bytearray(), ANSWER.bytes
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            raise RequestFailedError(f"the answer is {ANSWER.exceeded()}")
    return bytes(body) if encoding == "identity" else _decompressed(bytes(body), most)


def _decompressed(packed: bytes, most: int) -> bytes:
    """What gzip or zlib packed, at most `most` bytes of it. Raises RequestFailedError if it is more, or broken."""
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header
    try:
        body = unpack.decompress(packed, most + 1)
    except zlib.error as error:
        raise RequestFailedError(f"the answer cannot be decompressed ({error})") from None
    if len(body) > most:
        raise RequestFailedError(f"the answer is {ANSWER.exceeded()}")
    if not unpack.eof:
        raise RequestFailedError("the answer cannot be decompressed (it ends early)")
    return body


def key_headers() -> dict[str, str]:
    """The headers with the key for the servers that a person names; empty without a key."""
    key = key_in(CLIENT_KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def _refused_encoding(encoding: str) -> str | None:
    """Why a body of this encoding is not read: others than a few, and several on top of each other, make gigabytes of a
    kilobyte."""
    if encoding in ENCODINGS:
        return None
    return f"the answer is encoded as {encoding[:40]!r}; expected {', '.join(ENCODINGS)}"
