"""HTTP requests to servers, with bounded answers; and replicas of a server with circuit breakers and a retry budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sleuth.host.variables import ANSWER, CLIENT_KEY_VARIABLE, key_in

if TYPE_CHECKING:
    import aiohttp

IDLE_SECONDS = 2.0
"""Connections idle for longer are not reused: vLLM's, SGLang's and our servers close them after five seconds, and a
request sent at that moment is lost."""


class CallClock:
    """Measures the seconds, by the clock, in which at least one call was waited for."""

    def __init__(self) -> None:
        self._seconds, self._waiting, self._since = 0.0, 0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the time of a call."""
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._seconds += time.monotonic() - self._since

    def take(self) -> float:
        """The seconds of ended calls since the last time."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class RequestFailedError(Exception):
    """No whole answer of a permitted size came; the server may have got the request."""


class UnreachableError(RequestFailedError):
    """There was no connection, so the server did not get the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's whole answer; names in `headers` are in lower case."""

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
    take: Callable[[bytes], bool] | None = None,
) -> Answer:
    """The answer to one request, whatever its status; `body` is sent as JSON. Redirects are not followed, and the
    caller limits the time. `take` is given each line of a successful answer as it comes, and closes the request by
    returning True; the body is then empty. Raises RequestFailedError, and ValueError for a URL or a body that cannot be
    sent.

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
            if take is None or response.status != HTTPStatus.OK:
                return Answer(response.status, found, await _body(response))
            most = ANSWER.bytes
            async for line in response.content:
                most -= len(line)
                if most < 0:
                    raise RequestFailedError(f"the answer is {ANSWER.exceeded()}")
                if take(line):
                    break
            return Answer(response.status, found, b"")
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
        headers={"accept-encoding": "identity"},
        auto_decompress=False,
    ) as session:
        try:
            yield session
        finally:
            del _sessions[loop]


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises RequestFailedError once it is too large, or if it is compressed, which nobody asked for: a
    kilobyte may become gigabytes."""
    encoding = ", ".join(response.headers.getall("content-encoding", ["identity"])).strip().lower()
    if encoding != "identity":
        raise RequestFailedError(f"the answer is encoded as {encoding[:40]!r}; expected it as it is")
    body, most = bytearray(), ANSWER.bytes
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            raise RequestFailedError(f"the answer is {ANSWER.exceeded()}")
    return bytes(body)


def server_url(url: str) -> str:
    """`http://host:8000` of an address that may name a version."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def key_headers() -> dict[str, str]:
    """The headers with the key for the servers that a person names; empty without a key."""
    key = key_in(CLIENT_KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


# -- replicas ----------------------------------------------------------------------------------------------------------

FAILURES_TO_OPEN = 3  # consecutive failures that open the circuit, by default
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds; doubled after every failed trial
MAX_SAVED_RETRIES, RETRIES_PER_REQUEST = 100.0, 0.2


@dataclass(slots=True)
class Replica:
    """One server. While its circuit is open it gets no requests until `open_until`; then one request tries it."""

    url: str
    failures_to_open: int = FAILURES_TO_OPEN
    in_flight: int = 0
    failures: int = 0
    pause: float = 0.0
    open_until: float = 0.0

    @property
    def open(self) -> bool:
        """Whether its circuit is open: it failed too often and has not answered since."""
        return self.failures >= self.failures_to_open


class Replicas:
    """Spreads requests by load over the available servers, with a circuit breaker each. Times are in seconds."""

    def __init__(
        self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic, failures_to_open: int = FAILURES_TO_OPEN
    ) -> None:
        self.members = [Replica(url, failures_to_open) for url in urls]
        self._clock = clock

    def pick(self, avoid: Sequence[Replica] = ()) -> Replica | None:
        """The available replica with the fewest requests in flight, preferably not in `avoid`, or None if all pause."""
        available = [replica for replica in self.members if self.is_available(replica)]
        fresh = [replica for replica in available if replica not in avoid]
        return min(fresh or available, key=lambda replica: replica.in_flight, default=None)

    def seconds_until_next(self) -> float:
        """Seconds until a paused replica may be tried."""
        return max(0.01, min(replica.open_until for replica in self.members) - self._clock())

    def succeeded(self, replica: Replica) -> None:
        """Closes the circuit of a replica that answered."""
        replica.failures, replica.pause, replica.open_until = 0, 0.0, 0.0

    def failed(self, replica: Replica) -> None:
        """Counts a failure, which may open the circuit."""
        replica.failures += 1
        if replica.open and self._clock() >= replica.open_until:  # concurrent failures count once
            replica.pause = min(MAX_PAUSE, replica.pause * 2 or FIRST_PAUSE)
            replica.open_until = self._clock() + replica.pause

    def is_available(self, replica: Replica) -> bool:
        """Whether its circuit is closed, or its pause is over and no request is trying it."""
        if not replica.open:
            return True
        return replica.in_flight == 0 and self._clock() >= replica.open_until


class RetryBudget:
    """Limits retries to a fifth of the requests plus a reserve, so that retries do not overload a pool that is down."""

    def __init__(self) -> None:
        self._left = MAX_SAVED_RETRIES

    def record_request(self) -> None:
        """Adds a request's share to the budget."""
        self._left = min(MAX_SAVED_RETRIES, self._left + RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        """Takes one retry from the budget; returns whether there was one."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
