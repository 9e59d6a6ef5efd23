"""Servers whose answers are too large, or compressed."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from sleuth.engines.remote.http_client import HttpClient, LostResponseError
from sleuth.host.connections import ask_within
from sleuth.retrieval.remote import Remote, wait_until_ready
from sleuth.types import RetrievalFailed, SleuthError

RESULT = b'{"result": [[{"document": {"id": "1", "contents": "a town"}, "score": 1.0}]]}'
LARGE = b'{"result": "' + b"a" * 3_000_000 + b'"}'


@contextmanager
def answering(body: bytes, *encodings: str) -> Iterator[str]:
    """A server that gives one body, with these values of content-encoding."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def do_GET(self) -> None:
            try:
                self.send_response(200)
                for encoding in encodings:
                    self.send_header("content-encoding", encoding)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client has read enough
                self.close_connection = True

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def search(url: str) -> list[list[str]]:
    found = asyncio.run(Remote([url], timeout=10).search(["where?"], 1))
    return [[passage.text for passage in ranked] for ranked in found]


@pytest.mark.parametrize("encodings", [(), ("identity",)])
def test_ordinary_answers_are_read(encodings: tuple[str, ...]) -> None:
    with answering(RESULT, *encodings) as url:
        assert search(url) == [["a town"]]
        assert ask_within(10, "GET", url).json()["result"][0][0]["score"] == 1.0


def test_a_large_answer_is_a_failure_that_names_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_MAX_ANSWER_MB", "1")
    line = "the answer is larger than 1 MB; SLEUTH_MAX_ANSWER_MB in the environment raises this bound"
    with answering(LARGE) as url:
        with pytest.raises(RetrievalFailed, match=line):
            search(url)
        with pytest.raises(SleuthError, match=line):
            wait_until_ready([url])
        with pytest.raises(LostResponseError, match=line):
            asyncio.run(HttpClient(url, seconds=10).get("/"))


@pytest.mark.parametrize("encoding", ["gzip", "br", "nonsense"])
def test_a_compressed_answer_is_refused(encoding: str) -> None:
    with answering(gzip.compress(RESULT), encoding) as url, pytest.raises(RetrievalFailed, match="encoded as"):
        search(url)
