"""A corpus on the hub, whose server drops connections."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_hub import BrokenHub, broken_hub
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.data import hub as downloads
from sleuth.data.hub import RemoteFile, download
from sleuth.runs.progress import progress_bar
from sleuth.types import SleuthError

NOISE = random.Random(0).randbytes(600_000).hex()  # which no compression makes small
ROWS = [{"id": str(n), "contents": f'"Town {n}"\n{NOISE[n * 4000 : n * 4000 + 4000]}'} for n in range(300)]
CORPUS = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode(), mtime=0)
FILE = "owner/sets/corpus/towns.jsonl.gz"
PLACE, SHA256 = f"hf://{FILE}", hashlib.sha256(CORPUS).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenHub]:
    with broken_hub({FILE: CORPUS}, monkeypatch) as hub:
        yield hub


def index(folder: Path) -> Result:
    return CliRunner().invoke(app, ["index", PLACE, str(folder / "towns"), "--json"])


def test_a_corpus_of_the_hub_is_indexed_and_its_size_is_said_first(hub: BrokenHub, tmp_path: Path) -> None:
    result = index(tmp_path)
    assert json.loads(result.stdout)["count"] == 300
    assert result.stderr.splitlines()[0] == f"{PLACE}: 687.9 kB, into {tmp_path / 'towns.corpus'}"
    assert (tmp_path / "towns.corpus" / "towns.jsonl.gz").read_bytes() == CORPUS


def test_what_an_earlier_call_left_is_gone_on_with(hub: BrokenHub, tmp_path: Path) -> None:
    hub.drops = [250_000] + [0] * downloads.ATTEMPTS
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "the download stopped at 250.0 kB of 687.9 kB" in result.stderr
    assert "run the same command again to resume it" in result.stderr
    [part] = (tmp_path / "towns.corpus").iterdir()
    assert (part.name, part.stat().st_size) == (f"towns.jsonl.gz.{SHA256[:12]}.part", 250_000)
    assert not (tmp_path / "towns").exists()
    hub.sent.clear()
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(FILE, 250_000, len(CORPUS) - 250_000)]
    assert [path.name for path in (tmp_path / "towns.corpus").iterdir()] == ["towns.jsonl.gz"]


def test_a_part_of_another_version_is_not_gone_on_with(hub: BrokenHub, tmp_path: Path) -> None:
    (tmp_path / "towns.corpus").mkdir()
    (tmp_path / "towns.corpus" / "towns.jsonl.gz.0123456789ab.part").write_bytes(b"old")
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(FILE, 0, len(CORPUS))]


def test_a_server_without_ranges_sends_all_of_it_anew(hub: BrokenHub, tmp_path: Path) -> None:
    hub.ranges, hub.drops = False, [250_000]
    assert index(tmp_path).exit_code == 0
    assert hub.sent == [(FILE, 0, 250_000), (FILE, 0, len(CORPUS))]


def test_what_is_not_the_file_is_removed_and_that_is_said(hub: BrokenHub, tmp_path: Path) -> None:
    hub.wrong = FILE
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "the download has a wrong checksum and was removed" in result.stderr
    assert list((tmp_path / "towns.corpus").iterdir()) == []


def test_the_id_of_a_git_blob_is_a_checksum_too(hub: BrokenHub, tmp_path: Path) -> None:
    blob = hashlib.sha1(b"blob %d\0" % len(CORPUS) + CORPUS).hexdigest()
    url = f"{hub.url}/bytes/datasets/owner/sets/resolve/c0ffee/corpus/towns.jsonl.gz"
    file = RemoteFile(url=url, name="towns", size=len(CORPUS), version=blob, shown=PLACE)
    assert download(file, tmp_path, progress_bar).read_bytes() == CORPUS
    other = RemoteFile(url=url, name="others", size=len(CORPUS), version=blob[::-1], shown=PLACE)
    with pytest.raises(SleuthError, match="wrong checksum"):
        download(other, tmp_path, progress_bar)


def test_a_disk_with_too_little_room_is_said_before_anything_comes(
    hub: BrokenHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "free_bytes", lambda path: 10_000)
    result = index(tmp_path)
    assert result.exit_code == 2
    assert "name a DIR on a larger disk" in result.stderr
    assert hub.sent == []


def test_a_file_that_the_hub_does_not_have_is_one_line(hub: BrokenHub, tmp_path: Path) -> None:
    hub.status = 404
    result = index(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {PLACE}: cannot be downloaded from the hub: ")
    assert result.stderr.count("\n") == 1
