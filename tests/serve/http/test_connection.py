"""What one connection may cost a server, over real sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sockets import connected, everything, served

from sleuth.cli import http_server
from sleuth.serve import connection

HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def url(towns: Path) -> Iterator[str]:
    with served("retriever", towns) as url:
        yield url


def answer(url: str, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server sends until it closes; the parts are sent until it does."""
    with connected(url) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
        except OSError:
            pass
        return everything(client)


def test_a_header_of_many_megabytes_is_refused_at_its_first_kilobytes(url: str) -> None:
    sent = 0
    with connected(url) as client:
        client.sendall(HEAD + b"x: ")
        try:
            for _ in range(300):
                client.sendall(b"a" * 2**20)
                sent += 1
        except OSError:
            pass
        assert sent < 30  # what the kernel's buffers take
        everything(client)
    assert httpx.get(f"{url}/health", timeout=1).is_success


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"x: " + b"a" * 40_000 + b"\r\n\r\n",
        HEAD + b"".join(b"x%d: a\r\n" % number for number in range(200)) + b"\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["one header", "many headers", "path"],
)
def test_a_head_that_is_too_large_is_431(url: str, head: bytes) -> None:
    assert answer(url, head).startswith(b"HTTP/1.1 431 ")


def test_heads_of_ordinary_size_are_answered_whole_or_byte_by_byte(url: str) -> None:
    head = HEAD + b"x: " + b"a" * 16_000 + b"\r\nconnection: close\r\n\r\n"
    assert answer(url, head).startswith(b"HTTP/1.1 200 ")
    small = HEAD + b"connection: close\r\n\r\n"
    assert answer(url, *(small[at : at + 1] for at in range(len(small)))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("arrives", [0, 50_000, 100_000])
def test_pipelined_requests_behind_a_large_body_are_no_large_head(url: str, arrives: int) -> None:
    body = b"a" * 100_000
    first = b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    parts = (first + body[:arrives], body[arrives:] + HEAD, b"connection: close\r\n\r\n")
    received = answer(url, *parts, pause=0.05)
    assert b"HTTP/1.1 431" not in received
    assert received.count(b"HTTP/1.1 ") == 2


def test_trailers_are_bounded_as_heads_are(url: str) -> None:
    begun = b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: "
    received = answer(url, begun, *[b"a" * 2**16] * 20, pause=0.01)
    assert received.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b""], b"408"),
        ([HEAD], b"408"),
        ([HEAD + b"x: a"], b"408"),
        ([HEAD, *[b"x: a\r\n"] * 50], b"408"),
        ([HEAD + b"\r\n", *[b"\r\n"] * 40], b"200"),
    ],
    ids=["nothing", "half a head", "half a line", "a slow drip", "blank lines after an answer"],
)
def test_a_head_that_does_not_arrive_in_time_is_408_and_keeps_no_connection(
    url: str, parts: list[bytes], status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    began = time.monotonic()
    assert answer(url, *parts, pause=0.05).startswith(b"HTTP/1.1 %b " % status)
    assert time.monotonic() - began < 5


def test_five_hundred_half_heads_delay_nobody(url: str) -> None:
    clients = [connected(url) for _ in range(500)]
    try:
        for client in clients:
            client.sendall(HEAD)
        began = time.monotonic()
        assert httpx.get(f"{url}/health", timeout=5).is_success
        assert time.monotonic() - began < 2
    finally:
        for client in clients:
            client.close()


def test_every_verb_serves_with_bounded_connections() -> None:
    server = http_server.server_of(lambda: None)
    assert server.config.http is connection.BoundedConnection
