"""What becomes of a request to a server: an answer, or an error that says whether it may be made again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from emulator.model_server import free_url

from sleuth.engines.remote.completions import make_raw_completion
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    LostResponseError,
    RefusedError,
    ServerFailedError,
    TimedOutError,
    UnavailableError,
)
from sleuth.types import Sampling

Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes) -> Talk:
    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    return talk


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(100):
        writer.write(b" ")
        await asyncio.sleep(0.05)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def talking(*talks: Talk, seconds: float = 5.0) -> AsyncIterator[HttpClient]:
    """A client of a server whose connections talk so, one after another, each once."""
    waiting = iter(talks)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await next(waiting)(writer)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seconds=seconds)


def asked(talk: Talk, seconds: float = 5.0) -> object:
    """What comes of a request to one who talks so."""

    async def ask() -> object:
        async with talking(talk, seconds=seconds) as client:
            return await client.post("/generate", {})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        (answer(503, b""), UnavailableError),
        (answer(429, b""), UnavailableError),
        (answer(500, b""), ServerFailedError),
        (answer(400, b""), RefusedError),
        (hang_up, LostResponseError),
    ],
)
def test_errors_say_whether_a_request_may_be_made_again(talk, error):
    with pytest.raises(HttpClientError) as caught:
        asked(talk)
    assert type(caught.value) is error


@pytest.mark.parametrize("size", [0, 1_000_000])
def test_the_request_after_an_exception_of_the_server_gets_a_new_connection(size):
    """Uvicorn closes the old one behind its answer."""

    async def ask() -> object:
        async with talking(answer(500, b"x" * size), answer(200, b"{}")) as client:
            with pytest.raises(ServerFailedError):
                await client.post("/fails")
            return await client.post("/is/fine")  # which no client sends again by itself

    assert asyncio.run(ask()) == {}


def test_an_unreachable_server_has_not_taken_the_request():
    async def ask() -> None:
        await HttpClient(free_url(), seconds=5.0).get("/")

    with pytest.raises(UnavailableError):
        asyncio.run(ask())


def test_the_timeout_covers_the_whole_answer_however_slowly_it_arrives():
    started = time.monotonic()
    with pytest.raises(TimedOutError, match=r"gave no answer within 0\.4 seconds"):
        asked(trickle, seconds=0.4)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000])
def test_an_answer_that_is_not_json_is_none(body):
    assert asked(answer(200, body)) is None


@pytest.mark.parametrize("told", [float("nan"), float("-inf"), None])
def test_a_log_probability_that_is_not_finite_is_refused(told):
    with pytest.raises((ValueError, TypeError)):
        make_raw_completion([1, 2], [-0.5, told], Sampling(max_tokens=2), scaled=True, finish_reason="stop")
