"""Many requests at once over as many connections, which are used again and cost no more than one by one."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from sleuth.retrieval import connections
from sleuth.retrieval.connections import Connections


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
    async def running(self) -> AsyncIterator[httpx.AsyncClient]:
        talking: list[asyncio.Task[None] | None] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talking.append(asyncio.current_task())
            self.open += 1
            try:
                await self.talk(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
            finally:
                self.open -= 1

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(transport=Connections(), base_url=self.url, trust_env=False) as client:
            yield client
        server.close()
        await asyncio.gather(*filter(None, talking))


async def told(client: httpx.AsyncClient, *paths: str) -> list[str]:
    return [answer.text for answer in await asyncio.gather(*map(client.get, paths))]


def test_concurrent_requests_have_separate_connections_and_the_latest_is_reused() -> None:
    async def talk() -> None:
        echo = Echo(at_once=5)
        async with echo.running() as client:
            paths = [f"/{number}" for number in range(5)]
            assert await told(client, *paths) == paths
            echo.at_once = 1
            for path in paths:
                assert await told(client, path) == [path]
            assert sorted(echo.seen.values()) == [1, 1, 1, 1, 6]

    asyncio.run(talk())


def test_a_broken_or_long_idle_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        echo = Echo(drops_after=2)
        async with echo.running() as client:
            assert await told(client, "/1") == ["/1"]
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/2")
            assert await told(client, "/3") == ["/3"]
            monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
            assert await told(client, "/4") == ["/4"]
            assert list(echo.seen.values()) == [2, 1, 1]

    asyncio.run(talk())


def test_a_cancelled_request_does_not_affect_the_next() -> None:
    async def talk() -> None:
        echo = Echo(at_once=2)
        async with echo.running() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.get("/never")
            echo.at_once = 1
            echo.waiting.pop().set_result(None)
            assert await told(client, "/next") == ["/next"]
            assert len(echo.seen) == 2

    asyncio.run(talk())


@pytest.fixture
def nothing_is_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_is_collected")
def test_a_cancelled_request_closes_its_connection_at_any_moment() -> None:
    async def given_up(client: httpx.AsyncClient, turns: int) -> None:
        """After so many turns of the event loop: while it connects, waits, reads, or is done."""
        request = asyncio.create_task(client.get("/"))
        for _ in range(turns):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])

    async def talk() -> None:
        echo = Echo()
        async with echo.running() as client:
            for turns in range(40):
                for _ in range(5):
                    await given_up(client, turns)
            await asyncio.sleep(0.1)
            assert len(echo.seen) > 20
            assert echo.open <= 1  # the one that waits to be used again

    asyncio.run(talk())


def test_a_request_costs_as_much_among_many_as_among_few() -> None:
    async def seconds(at_once: int, requests: int = 512) -> float:
        echo = Echo(at_once=at_once)
        async with echo.running() as client:
            await told(client, *["/"] * at_once)
            started = time.process_time()
            for _ in range(requests // at_once):
                await told(client, *["/"] * at_once)
            return time.process_time() - started

    asyncio.run(seconds(8, 64))
    assert asyncio.run(seconds(256)) < 4 * asyncio.run(seconds(8))  # of httpx's own pool: 20 times as much
