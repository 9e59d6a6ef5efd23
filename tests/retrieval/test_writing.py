"""A kill costs little, and never the answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import KilledError, WriteCorpus, towns

from sleuth.retrieval import bm25
from sleuth.retrieval.bm25 import Bm25, Bm25Writer, build_index
from sleuth.retrieval.corpus import corpus_hash, read_corpus
from sleuth.retrieval.dense import adopt_vectors, build_dense
from sleuth.retrieval.hybrid import build_hybrid
from sleuth.retrieval.index_card import EncoderCard
from sleuth.types import Passage, SleuthError

MANY = towns(range(4000))


class Counting(Bm25Writer):
    """Counts what it is fed."""

    fed = 0

    def add(self, passages: list[Passage]) -> None:
        super().add(passages)
        Counting.fed += len(passages)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bm25Writer, "every", 1000)
    monkeypatch.setattr(bm25, "Bm25Writer", Counting)
    Counting.fed = 0


def stop_at(count: int):
    def progress(done: int) -> None:
        if done == count:
            raise KilledError

    return progress


def answers(folder: Path) -> list[list[Passage]]:
    return asyncio.run(Bm25(folder).search(["town 5", "near 30", "lies", "96"], 20))


@pytest.mark.usefixtures("often")
def test_a_kill_before_a_commit_loses_and_doubles_nothing(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(MANY)
    build_index(path, tmp_path / "whole")
    checkpoint = Bm25Writer.checkpoint

    def killed(writer: Bm25Writer) -> None:
        if writer.done > 1000:
            writer._passages.flush()
            raise KilledError
        checkpoint(writer)

    monkeypatch.setattr(Bm25Writer, "checkpoint", killed)
    with pytest.raises(KilledError):
        build_index(path, tmp_path / "index")
    monkeypatch.setattr(Bm25Writer, "checkpoint", checkpoint)
    Counting.fed = 0
    build_index(path, tmp_path / "index")
    assert Counting.fed == 3000, "the first thousand were there"
    assert answers(tmp_path / "index") == answers(tmp_path / "whole")
    monkeypatch.setattr(bm25, "IndexCard", None)  # killed after the last commit, before the card
    with pytest.raises(TypeError):
        build_index(path, tmp_path / "late")
    monkeypatch.undo()
    assert build_index(path, tmp_path / "late").count == len(MANY)
    assert answers(tmp_path / "late") == answers(tmp_path / "whole")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("change", ["a passage", "the end"])
def test_an_unfinished_index_of_another_corpus_is_restarted(
    write_corpus: WriteCorpus, tmp_path: Path, change: str
) -> None:
    with pytest.raises(KilledError):
        build_index(write_corpus(MANY), tmp_path / "index", stop_at(2750))
    other = MANY | {"500": '"Isle"\nAn isle.'} if change == "a passage" else dict(list(MANY.items())[:1500])
    Counting.fed = 0
    card = build_index(write_corpus(other), tmp_path / "index")
    assert (card.count, Counting.fed) == (len(other), len(other))
    assert card.corpus_sha256 == corpus_hash(read_corpus(write_corpus(other)))


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, OSError])
def test_a_full_disk_is_an_error_of_the_system_that_names_the_folder(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def checkpoint(writer: Bm25Writer) -> None:
        raise kind("An IO error occurred: 'No space left on device (os error 28)'")

    monkeypatch.setattr(Bm25Writer, "checkpoint", checkpoint)
    with pytest.raises(OSError, match="No space left on device") as caught:
        build_index(write_corpus(MANY), tmp_path / "index")
    assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "index.partial"))
    assert not (tmp_path / "index.partial").exists()


@pytest.mark.usefixtures("often")
def test_an_unfinished_index_of_other_settings_is_kept(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(MANY)
    with pytest.raises(KilledError):
        build_index(path, tmp_path / "index", stop_at(2750))
    monkeypatch.setattr(bm25, "LAYOUT", 99)
    with pytest.raises(SleuthError, match="an unfinished index made with another layout; use the same"):
        build_index(path, tmp_path / "index")
    assert (tmp_path / "index.partial").is_dir()


def test_a_kill_between_the_two_renames_loses_no_index(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build_index(write_corpus(), tmp_path / "index")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name == "index.partial":
            raise KilledError
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KilledError):
        build_index(write_corpus({"1": "other"}), tmp_path / "index")
    monkeypatch.undo()
    with pytest.raises(SleuthError, match=r"index: a killed build left its index as .*index\.old; rename that to"):
        Bm25(tmp_path / "index")
    with pytest.raises(SleuthError, match="no passages in this file"):
        build_index(write_corpus({}), tmp_path / "index")
    assert Bm25(tmp_path / "index").card == before  # back in its place, though nothing took it
    assert build_index(write_corpus({"1": "other"}), tmp_path / "index").count == 1
    assert not (tmp_path / "index.old").exists()


def test_an_unfinished_index_of_several_writers_is_refused(
    often: None, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    def kill(done: int) -> None:
        if done > 2000:
            raise KilledError

    path, plan = write_corpus(MANY), tmp_path / "index.partial" / "plan.json"
    with pytest.raises(KilledError):
        build_index(path, tmp_path / "index", kill)
    plan.write_text(json.dumps({key: of for key, of in json.loads(plan.read_text()).items() if "writers" not in key}))
    with pytest.raises(SleuthError, match="with another number of writers; use the same to resume it, or remove the"):
        build_index(path, tmp_path / "index")


def test_two_processes_do_not_make_one_index(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    path = write_corpus(MANY)

    def again(done: int) -> None:
        with pytest.raises(SleuthError, match="another process is making this index"):
            build_index(path, tmp_path / "index")

    assert build_index(path, tmp_path / "index", again).count == len(MANY)


def test_a_process_killed_at_any_moment_leaves_work_that_the_next_one_finishes(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    path = write_corpus(MANY)
    script = f"""
import time
from pathlib import Path
from sleuth.retrieval.bm25 import Bm25Writer, build_index
Bm25Writer.every = 500
build_index(Path({str(path)!r}), Path({str(tmp_path / "index")!r}), lambda done: time.sleep(0.02))
"""
    checkpoints = tmp_path / "index.partial" / "checkpoints.jsonl"
    for wanted in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", script])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if checkpoints.exists() and len(checkpoints.read_text().splitlines()) >= wanted:
                break
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len([json.loads(line) for line in checkpoints.read_text().splitlines()]) >= wanted
    assert build_index(path, tmp_path / "index") == build_index(path, tmp_path / "whole")
    assert answers(tmp_path / "index") == answers(tmp_path / "whole")


def test_without_faiss_every_verb_of_vectors_is_one_line_that_says_how_to_install_it(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    encoder, corpus = EncoderCard(model="m", width=8), write_corpus({"1": "a"})
    for build in (
        lambda: build_dense(corpus, tmp_path / "index", encoder),
        lambda: build_hybrid(corpus, tmp_path / "index", encoder),
        lambda: adopt_vectors(corpus, tmp_path / "index", encoder, tmp_path / "v.faiss"),
    ):
        with pytest.raises(SleuthError) as caught:
            build()
        assert str(caught.value) == "a dense index needs the packages of an extra: pip install 'sleuth[dense]'"
        assert [path.name for path in tmp_path.iterdir()] == [corpus.name]
