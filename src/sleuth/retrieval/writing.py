"""Resumable index building: streams a corpus into an index of any kind and moves it into place when complete."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

from sleuth.retrieval.corpus import hash_input, read_corpus
from sleuth.retrieval.index_card import OLD, IndexCard, is_index, write_index_card
from sleuth.types import Passage, SleuthError

BATCH = 250  # passages per `IndexWriter.add`
REMOVALS, REMOVAL_PAUSE = 20, 0.05
"""Attempts to remove a failed index, and seconds between them: threads of its writer may still write files."""
PLAN, CHECKPOINTS, LOCK = "plan.json", "checkpoints.jsonl", "lock"
BOOKKEEPING = (PLAN, CHECKPOINTS, LOCK)

Progress = Callable[[int], None]
"""Called with the number of passages done."""


class IndexWriter(Protocol):
    """The writer of one kind of index, in its own folder. Opening it resumes what a killed process left there.

    `done` is the number of passages it has, from the first of the corpus; just after opening, all of them are on disk.
    `every` is the number of passages between checkpoints, a multiple of `BATCH`: a checkpoint makes all passages that
    were added survive a kill. `finish` completes the index.
    """

    @property
    def every(self) -> int: ...

    @property
    def done(self) -> int: ...

    def add(self, passages: list[Passage]) -> None: ...

    def checkpoint(self) -> None: ...

    def finish(self, corpus_sha256: str) -> IndexCard: ...


def write_index(
    corpus: Path,
    folder: Path,
    plan: Mapping[str, object],
    open_writer: Callable[[Path], IndexWriter],
    progress: Progress = lambda count: None,
) -> IndexCard:
    """Indexes `corpus` into `folder`; `plan` has the kind of index and its settings.

    The index grows in `folder` + ".partial" and is renamed when complete, replacing an existing one. An unfinished
    earlier call is resumed if plan and corpus are the same: the corpus is read again and its hash compared at the
    checkpoints, but nothing is indexed twice. Raises SleuthError for a malformed corpus, for a folder with other
    content, and for an unfinished index of another plan; OSError, whatever library met it, for a full disk.
    """
    if folder.exists() and not is_index(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise SleuthError(f"{folder}: exists and is not an index; name a new or empty folder")
    target = folder.resolve()
    partial = target.with_name(target.name + ".partial")
    old = target.with_name(target.name + OLD)
    if not target.exists() and is_index(old):  # a killed process had moved it aside, and not replaced it yet
        old.rename(target)
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise SleuthError(f"{folder}: no folder can be here: part of its path is a file; name another") from None
    with (partial / LOCK).open("w") as lock:
        _lock(lock, partial)
        _check_plan(partial, plan)
        try:
            card = _resume(corpus, partial, plan, open_writer, progress)
            card = write_index_card(card, partial, but=BOOKKEEPING)
            _replace(partial, target)
        except (OSError, ValueError, RuntimeError) as error:
            full = os.strerror(errno.ENOSPC)
            if full not in str(error):  # tantivy raises ValueError, faiss RuntimeError
                raise
            raise OSError(errno.ENOSPC, full, str(partial)) from error
        finally:
            if partial.exists() and not _checkpoints(partial):
                _remove(partial)
    return card


def _remove(partial: Path) -> None:
    for _ in range(REMOVALS):
        shutil.rmtree(partial, ignore_errors=True)
        if not partial.exists():
            return
        time.sleep(REMOVAL_PAUSE)


def _resume(
    corpus: Path,
    partial: Path,
    plan: Mapping[str, object],
    open_writer: Callable[[Path], IndexWriter],
    progress: Progress,
) -> IndexCard:
    """Resumes an unfinished index of this corpus, or starts from nothing."""
    try:
        if _checkpoints(partial):
            return _fill(corpus, partial, open_writer(partial), progress)
    except _OtherCorpusError:
        pass
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    (partial / PLAN).write_text(json.dumps(plan))
    return _fill(corpus, partial, open_writer(partial), progress)


def _fill(corpus: Path, partial: Path, writer: IndexWriter, progress: Progress) -> IndexCard:
    passages, digest, count, resumed_at = read_corpus(corpus), hashlib.sha256(), 0, writer.done
    known = {number: sha256 for number, sha256 in _checkpoints(partial).items() if number <= resumed_at}
    while batch := list(islice(passages, BATCH)):
        new = batch[max(0, writer.done - count) :]
        count += len(batch)
        for passage in batch:
            digest.update(hash_input(passage))
        if known.get(count, digest.hexdigest()) != digest.hexdigest():
            raise _OtherCorpusError
        if new:
            writer.add(new)
            if count % writer.every == 0:
                _checkpoint(partial, count, writer, digest.hexdigest())
        progress(count)
    if not count:
        raise SleuthError(f"{corpus}: no passages in this file")
    if count < resumed_at:
        raise _OtherCorpusError
    return writer.finish(digest.hexdigest())


class _OtherCorpusError(Exception):
    """The unfinished index was made from another corpus."""


def _checkpoint(partial: Path, count: int, writer: IndexWriter, sha256: str) -> None:
    """Saves the hash before the writer's checkpoint, so that after a kill the hash of its content is known."""
    with (partial / CHECKPOINTS).open("a") as lines:
        lines.write(json.dumps({"count": count, "sha256": sha256}) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    writer.checkpoint()


def _checkpoints(partial: Path) -> dict[int, str]:
    """The hash of the corpus so far, by number of passages; lines truncated by a kill are skipped."""
    saved = {}
    for line in (partial / CHECKPOINTS).read_bytes().splitlines() if (partial / CHECKPOINTS).exists() else ():
        try:
            checkpoint = json.loads(line)
        except ValueError:
            continue
        saved[checkpoint["count"]] = checkpoint["sha256"]
    return saved


def _check_plan(partial: Path, plan: Mapping[str, object]) -> None:
    if not _checkpoints(partial):
        return
    saved = json.loads((partial / PLAN).read_text())
    ours = json.loads(json.dumps(plan))
    changed = sorted(key for key in saved.keys() | ours.keys() if saved.get(key) != ours.get(key))
    if changed:
        raise SleuthError(
            f"{partial}: an unfinished index made with another {', '.join(changed)}; use the same to resume it, "
            "or remove the folder"
        )


def _lock(lock: IO[str], partial: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the kernel when this process dies
    except BlockingIOError:
        raise SleuthError(f"{partial}: another process is making this index; wait for it to end") from None


def _replace(partial: Path, target: Path) -> None:
    old = target.with_name(target.name + OLD)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    for name in BOOKKEEPING:
        (partial / name).unlink(missing_ok=True)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
