"""Many requests at once over as many connections, which are used again and cost no more than one by one."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sleuth.host import connections
from sleuth.host.connections import RequestFailedError, ask


@dataclass
class Echo:
    """Answers each request with its path, as soon as `at_once` of them wait; `seen` counts those of each connection,
    and `open` the connections that nobody has closed."""

    at_once: int = 1
    drops_after: int | None = None
    url: str = ""
    seen: Counter[int] = field(default_factory=Counter)
    open: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = len(self.seen)
        self.seen[name] = 0
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split()[1]
            self.seen[name] += 1
            self.waiting.append(asyncio.get_running_loop().create_future())
            if len(self.waiting) >= self.at_once:
                for one in self.waiting:
                    one.set_result(None)
                self.waiting = []
            else:
                await self.waiting[-1]
            drops = self.seen[name] == self.drops_after
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(path) + drops) + path)
            if drops:
                return writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.open += 1
            try:
                await self.talk(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # cancelled with the loop
                writer.close()
            finally:
                self.open -= 1

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield self.url
        server.close()


async def answers_of(url: str, *paths: str) -> list[str]:
    return [answer.body.decode() for answer in await asyncio.gather(*(ask("GET", url + path) for path in paths))]


def test_concurrent_requests_have_separate_connections_which_are_used_again() -> None:
    async def talk() -> None:
        echo = Echo(at_once=5)
        async with echo.running() as url:
            paths = [f"/{number}" for number in range(5)]
            assert await answers_of(url, *paths) == paths
            echo.at_once = 1
            for path in paths:
                assert await answers_of(url, path) == [path]
            assert (len(echo.seen), sum(echo.seen.values())) == (5, 10)

    asyncio.run(talk())


def test_a_broken_or_long_idle_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        echo = Echo(drops_after=2)
        async with echo.running() as url:
            assert await answers_of(url, "/1") == ["/1"]
            with pytest.raises(RequestFailedError):
                await ask("GET", url + "/2")
            assert await answers_of(url, "/3") == ["/3"]
            await asyncio.sleep(0.4)
            assert await answers_of(url, "/4") == ["/4"]
            assert list(echo.seen.values()) == [2, 1, 1]

    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    asyncio.run(talk())


@pytest.fixture
def nothing_is_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_is_collected")
def test_a_cancelled_request_closes_its_connection_at_any_moment() -> None:
    async def given_up(url: str, turns: int) -> None:
        """After so many turns of the event loop: while it connects, waits, reads, or is done."""
        request = asyncio.create_task(ask("GET", url + "/"))
        for _ in range(turns):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])

    async def talk() -> None:
        echo = Echo()
        async with echo.running() as url:
            for turns in range(40):
                for _ in range(5):
                    await given_up(url, turns)
            await asyncio.sleep(0.1)
            assert len(echo.seen) > 20
            assert echo.open <= 1  # the one that waits to be used again

    asyncio.run(talk())


def test_connections_close_with_their_event_loop() -> None:
    async def talk() -> tuple[Any, Any]:
        async with Echo().running() as url:
            await answers_of(url, "/1", "/2")
            return await connections._session(), await connections._session()

    first, again = asyncio.run(talk())
    other, _ = asyncio.run(talk())
    assert first is again
    assert other is not first
    assert first.closed
    assert other.closed
    assert not connections._sessions
