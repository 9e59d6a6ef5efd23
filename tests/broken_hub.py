"""A server of this machine in the hub's place, which breaks connections as the real way does."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from sleuth.data import hub as downloads

COMMIT = "c0ffee"


class BrokenHub:
    """Answers for `files` (`OWNER/NAME/PATH`) as the hub does: what one is, then a way to another host, where its bytes
    are.

    `drops` are the numbers of bytes after which the next connections break; `ranges` whether a part can be asked for;
    `wrong` a file whose checksum is another's. `sent` are (file, start, bytes) of each connection.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.drops: list[int] = []
        self.ranges, self.status, self.wrong = True, 200, ""
        self.sent: list[tuple[str, int, int]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *_: object) -> None:
                pass

            def file(self) -> str:
                _, owner, name, _, revision, path = (
                    self.path.removeprefix("/bytes").removeprefix("/datasets").split("/", 5)
                )
                assert revision == (COMMIT if self.command == "GET" else "main")
                return f"{owner}/{name}/{path}"

            def do_HEAD(self) -> None:
                content = files[file := self.file()]
                etag = "0" * 64 if hub.wrong == file else hashlib.sha256(content).hexdigest()
                self.send_response(hub.status if hub.status != 200 else 302)
                for name, value in (("X-Repo-Commit", COMMIT), ("X-Linked-Etag", f'"{etag}"')):
                    self.send_header(name, value)
                self.send_header("X-Linked-Size", str(len(content)))
                self.send_header("Location", f"{hub.url}/bytes{self.path}".replace("127.0.0.1", "localhost"))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                if not self.path.startswith("/bytes"):
                    return self.do_HEAD()
                content, asked = files[self.file()], self.headers.get("Range") if hub.ranges else None
                start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
                rest = content[start:]
                self.send_response(206 if asked else 200)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                sent = rest[: hub.drops.pop(0)] if hub.drops else rest
                hub.sent.append((self.file(), start, len(sent)))  # first: the client goes on when it has the bytes
                self.wfile.write(sent)
                self.close_connection = True
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def broken_hub(files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenHub]:
    """The hub, asked by whoever downloads meanwhile."""
    hub = BrokenHub(files)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    yield hub
    hub.close()
