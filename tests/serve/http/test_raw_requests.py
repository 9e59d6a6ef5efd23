"""Forty shapes of bytes on a socket: no server answers with its own failure, hangs, or grows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from sockets import SERVERS, connected, everything, served

from sleuth.serve import connection
from sleuth.serve.access import Limits

HOST = b"host: localhost\r\n"
JSON = HOST + b"content-type: application/json\r\n"
CLOSE = b"connection: close\r\n"
PATHS = {"chat": b"/v1/chat/completions", "retriever": b"/retrieve"}
DIGITS = b"9" * 5000
SURROGATES = rb"""{"queries": ["\ud800"], "prompt": "\ud800", "messages": [{"role": "user", "content": "\ud800"}]}"""
SECONDS = 5.0
"""No shape may keep its connection for longer; the bounds of heads and bodies are shortened below that."""


def posted(path: bytes, body: bytes, *headers: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n%b%b\r\n" % (path, JSON, len(body), CLOSE, b"".join(headers))
        + body
    )


def shapes(path: bytes) -> dict[str, bytes]:
    """Bytes by name; the connection is then left to the server."""
    post = b"POST %b HTTP/1.1\r\n" % path
    chunked = post + JSON + CLOSE + b"transfer-encoding: chunked\r\n\r\n"
    return {
        "nothing": b"",
        "a blank line": b"\r\n",
        "many blank lines": b"\r\n" * 5000,
        "zeros": bytes(4096),
        "random bytes": bytes(range(256)) * 16,
        "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "an SSH greeting": b"SSH-2.0-OpenSSH_9.9\r\n",
        "HTTP/0.9": b"GET /health\r\n",
        "an unknown version": b"GET /health HTTP/9.9\r\n" + HOST + b"\r\n",
        "no host": b"GET /health HTTP/1.1\r\n" + CLOSE + b"\r\n",
        "two hosts": b"GET /health HTTP/1.1\r\n" + HOST + b"host: elsewhere\r\n" + CLOSE + b"\r\n",
        "a foreign host": b"GET /health HTTP/1.1\r\nhost: evil.example\r\n" + CLOSE + b"\r\n",
        "an unknown method": b"BREW /health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "a method in small letters": b"get /health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "CONNECT": b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + b"\r\n",
        "TRACE": b"TRACE /health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "an absolute address": b"GET http://evil.example/health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "a path that climbs": b"GET /../../../../etc/passwd HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "an escaped path that climbs": b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "a zero in the path": b"GET /health%00.html HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "invalid UTF-8 in the path": b"GET /%ff%fe HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
        "a header without a name": b"GET /health HTTP/1.1\r\n" + HOST + b": x\r\n" + CLOSE + b"\r\n",
        "a header without a colon": b"GET /health HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
        "a folded header": b"GET /health HTTP/1.1\r\n" + HOST + b"x: a\r\n b\r\n" + CLOSE + b"\r\n",
        "a zero in a header": b"GET /health HTTP/1.1\r\n" + HOST + b"x: a\0b\r\n" + CLOSE + b"\r\n",
        "lines that end in LF": b"GET /health HTTP/1.1\nhost: localhost\nconnection: close\n\n",
        "a negative length": post + JSON + b"content-length: -1\r\n\r\n",
        "a length that is no number": post + JSON + b"content-length: many\r\n\r\n",
        "two lengths": post + JSON + b"content-length: 2\r\ncontent-length: 9\r\n\r\n{}",
        "a length and chunks": post + JSON + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "a huge length": post + JSON + b"content-length: 99999999999999999999\r\n\r\n",
        "half a body": post + JSON + b"content-length: 1000\r\n\r\n{",
        "a chunk of a wrong size": chunked + b"zz\r\n{}\r\n0\r\n\r\n",
        "a chunk that never ends": chunked + b"ffffffff\r\n{",
        "an empty body": posted(path, b""),
        "a body of zeros": posted(path, bytes(1000)),
        "unpaired surrogates": posted(path, SURROGATES),
        "deeply nested": posted(path, b"[" * 100_000),
        "a number of many digits": posted(path, b'{"topk": %b, "queries": ["a"], "max_tokens": %b}' % (DIGITS, DIGITS)),
        "a compressed body": posted(path, bytes(range(200)), b"content-encoding: gzip\r\n"),
        "an upgrade": b"GET /health HTTP/1.1\r\n" + HOST + b"connection: close, upgrade\r\nupgrade: websocket\r\n\r\n",
    }  # fmt: skip


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def received_after(url: str, sent: bytes) -> bytes:
    with connected(url) as client:
        client.settimeout(SECONDS)
        with suppress(OSError):
            client.sendall(sent)
        try:
            return everything(client)
        except TimeoutError:
            return b"TIMEOUT"


@pytest.mark.parametrize("kind", SERVERS)
def test_no_shape_of_bytes_brings_a_server_down(kind: str, towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    monkeypatch.setitem(Limits.__init__.__kwdefaults__, "upload_seconds", 0.3)
    tried = shapes(PATHS[kind])
    assert len(tried) >= 40
    with served(kind, towns) as url:
        with ThreadPoolExecutor(len(tried)) as clients:
            answers = dict(zip(tried, clients.map(partial(received_after, url), tried.values()), strict=True))
            before = resident()
            list(clients.map(partial(received_after, url), tried.values()))
        assert resident() < 1.1 * before
        assert httpx.get(f"{url}/health", timeout=1).is_success
    assert {name: answer[:60] for name, answer in answers.items() if answer == b"TIMEOUT"} == {}
    failed = {name: answer[:200] for name, answer in answers.items() if answer.startswith(b"HTTP/1.1 5")}
    assert failed == {}
    assert answers["half a body"].startswith(b"HTTP/1.1 408 ")
    assert not any(b"root:" in answer for answer in answers.values())
