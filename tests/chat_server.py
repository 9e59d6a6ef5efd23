"""A scripted server on a free port: of OpenAI chat completions, or of another path."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

MODEL = "judge-8b"

Answer = Callable[[dict[str, Any]], tuple[int, object]]


def says(content: object, **message: object) -> tuple[int, object]:
    """The reply of a completion with that content."""
    reply = {"content": content, **message}
    return 200, {"model": MODEL, "choices": [{"message": reply, "finish_reason": "stop"}]}


def scored(score: object, reason: str = "so it is", quote: str = "") -> str:
    return json.dumps({"reason": reason, "quote": quote, "score": score})


def preferred(better: str) -> str:
    return json.dumps({"reason": "so it is", "better": better})


def part(body: dict[str, Any], name: str) -> str:
    """The text between the tags of a name in the judge's question; empty if there are none."""
    found = re.search(rf"<({name}-[0-9a-f]+)>\n(.*?)\n</\1>", body["messages"][1]["content"], re.DOTALL)
    return found[2] if found else ""


def right(body: dict[str, Any]) -> tuple[int, object]:
    """Full support if the evidence contains the claim, else none; of a pair, the longer text."""
    if first := part(body, "first"):
        return says(preferred("first" if len(first) > len(part(body, "second")) else "second"))
    return says(scored(2 if part(body, "claim") in part(body, "evidence") else 0))


def closed_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@dataclass
class ChatServer:
    """`answer` and `models`, what GET finds, can be replaced at any time; `asked` has the bodies of requests to `path`,
    `keys` their authorization."""

    answer: Answer = right
    models: tuple[int, object] = (200, {"data": [{"id": MODEL}]})
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.path == scripted.path
                scripted.asked.append(body)
                scripted.keys.append(self.headers["authorization"])
                self.reply(*scripted.answer(body))

            def do_GET(self) -> None:
                assert self.path in ("/v1/models", "/health")
                self.reply(*scripted.models)

            def reply(self, status: int, content: object) -> None:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in scripted.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None: ...

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *args: object) -> None: ...

        listener = Listener(("127.0.0.1", self.port), Handler)
        self.port = listener.server_address[1]
        thread = Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            listener.shutdown()
            listener.server_close()
