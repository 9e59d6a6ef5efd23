"""A corpus on the hub, with a server of this machine in the hub's place that drops connections as the real way does."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.data import hub as downloads
from sleuth.data.hub import RemoteFile, download
from sleuth.runs.progress import progress_bar
from sleuth.types import SleuthError

NOISE = random.Random(0).randbytes(600_000).hex()  # which no compression makes small
ROWS = [{"id": str(n), "contents": f'"Town {n}"\n{NOISE[n * 4000 : n * 4000 + 4000]}'} for n in range(300)]
CORPUS = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode(), mtime=0)
PLACE = "hf://owner/sets/corpus/towns.jsonl.gz"


class Hub:
    """Answers for one file as the hub does: what it is, then a way to another host, where its bytes are.

    `drops` are the numbers of bytes after which the next connections break; `ranges` whether a part can be asked for.
    `sent` are the bytes that went out with each connection, from where.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = hashlib.sha256(content).hexdigest()
        self.drops: list[int] = []
        self.ranges = True
        self.status = 200
        self.sent: list[tuple[int, int]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.send_response(hub.status if hub.status != 200 else 302)
                self.send_header("X-Repo-Commit", "c0ffee")
                self.send_header("X-Linked-Etag", f'"{hub.etag}"')
                self.send_header("X-Linked-Size", str(len(hub.content)))
                self.send_header("Location", f"{hub.url}/bytes".replace("127.0.0.1", "localhost"))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                if self.path != "/bytes":
                    assert self.path == "/datasets/owner/sets/resolve/c0ffee/corpus/towns.jsonl.gz"
                    return self.do_HEAD()
                asked = self.headers.get("Range")
                start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and hub.ranges else 0
                rest = hub.content[start:]
                self.send_response(206 if asked and hub.ranges else 200)
                self.send_header("Content-Range", f"bytes {start}-{len(hub.content) - 1}/{len(hub.content)}")
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                sent = rest[: hub.drops.pop(0)] if hub.drops else rest
                self.wfile.write(sent)
                self.wfile.flush()
                hub.sent.append((start, len(sent)))
                if len(sent) < len(rest):
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(CORPUS)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    yield hub
    hub.close()


def index(folder: Path) -> Result:
    return CliRunner().invoke(app, ["index", PLACE, str(folder / "towns"), "--json"])


def test_a_corpus_of_the_hub_is_indexed_and_its_size_is_said_first(hub: Hub, tmp_path: Path) -> None:
    result = index(tmp_path)
    assert json.loads(result.stdout)["count"] == 300
    assert result.stderr.splitlines()[0] == f"{PLACE}: 687.9 kB, into {tmp_path / 'towns.corpus'}"
    assert (tmp_path / "towns.corpus" / "towns.jsonl.gz").read_bytes() == CORPUS


def test_what_an_earlier_call_left_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.drops = [250_000] + [0] * downloads.ATTEMPTS
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "the download stopped at 250.0 kB of 687.9 kB" in result.stderr
    assert "run the same command again to resume it" in result.stderr
    [part] = (tmp_path / "towns.corpus").iterdir()
    assert (part.name, part.stat().st_size) == (f"towns.jsonl.gz.{hub.etag[:12]}.part", 250_000)
    assert not (tmp_path / "towns").exists()
    hub.sent.clear()
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(250_000, len(CORPUS) - 250_000)]
    assert [path.name for path in (tmp_path / "towns.corpus").iterdir()] == ["towns.jsonl.gz"]


def test_a_part_of_another_version_is_not_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "towns.corpus").mkdir()
    (tmp_path / "towns.corpus" / "towns.jsonl.gz.0123456789ab.part").write_bytes(b"old")
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(0, len(CORPUS))]


def test_a_server_without_ranges_sends_all_of_it_anew(hub: Hub, tmp_path: Path) -> None:
    hub.ranges, hub.drops = False, [250_000]
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(0, 250_000), (0, len(CORPUS))]


def test_what_is_not_the_file_is_removed_and_that_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.etag = "0" * 64
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "the download has a wrong checksum and was removed" in result.stderr
    assert list((tmp_path / "towns.corpus").iterdir()) == []


def test_the_id_of_a_git_blob_is_a_checksum_too(hub: Hub, tmp_path: Path) -> None:
    blob = hashlib.sha1(b"blob %d\0" % len(CORPUS) + CORPUS).hexdigest()
    url = f"{hub.url}/bytes"
    file = RemoteFile(url=url, name="towns", size=len(CORPUS), version=blob, shown=PLACE)
    assert download(file, tmp_path, progress_bar).read_bytes() == CORPUS
    other = RemoteFile(url=url, name="others", size=len(CORPUS), version=blob[::-1], shown=PLACE)
    with pytest.raises(SleuthError, match="wrong checksum"):
        download(other, tmp_path, progress_bar)


def test_a_disk_with_too_little_room_is_said_before_anything_comes(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "free_bytes", lambda path: 10_000)
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "name a DIR on a larger disk" in result.stderr
    assert hub.sent == []


def test_a_file_that_the_hub_does_not_have_is_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.status = 404
    result = index(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {PLACE}: cannot be downloaded from the hub: ")
    assert result.stderr.count("\n") == 1
