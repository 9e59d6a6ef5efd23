"""A corpus streamed into an index of any kind, so that a kill costs little and a folder never holds half an index."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

from sleuth.retrieval.corpus import hashed_bytes, read_corpus
from sleuth.retrieval.index_card import IndexCard, is_index, write_card
from sleuth.types import Passage, SleuthError

BATCH = 250  # passages handed to a writer at once
PLAN, CHECKPOINTS, LOCK = "plan.json", "checkpoints.jsonl", "lock"
OURS = (PLAN, CHECKPOINTS, LOCK)

Progress = Callable[[int], None]
"""Is told how many passages of the corpus are done."""


class IndexWriter(Protocol):
    """One kind of index, being made in a folder of its own. It opens with what a killed process left there.

    `done` counts the passages that it holds, from the first of the corpus; when it has just been opened these are safe
    on disk. `every` is how many passages may lie between two checkpoints, a multiple of `BATCH`.
    """

    @property
    def every(self) -> int: ...

    @property
    def done(self) -> int: ...

    def add(self, passages: list[Passage]) -> None:
        """Take the next passages of the corpus."""
        ...

    def checkpoint(self) -> None:
        """Make all that was added survive a kill."""
        ...

    def finish(self, corpus_sha256: str) -> IndexCard:
        """Nothing more comes: keep what was added since the last checkpoint, do the last work, give the card."""
        ...


def write_index(
    corpus: Path,
    folder: Path,
    plan: Mapping[str, object],
    open_writer: Callable[[Path], IndexWriter],
    progress: Progress = lambda count: None,
) -> IndexCard:
    """Index `corpus` into `folder`; `plan` is what makes this index what it is.

    It grows in `folder` + ".partial" and is renamed when it is whole; an index that is already there is replaced then.
    What an earlier call left unfinished is gone on from if plan and corpus are the same: the corpus is read again, and
    its hash compared at the checkpoints, but nothing is indexed twice. Raises SleuthError for a malformed corpus, for
    a folder that holds anything else, and where an unfinished index of another plan is in the way.
    """
    if folder.exists() and not is_index(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise SleuthError(f"{folder}: exists and is not an index; name a new or empty folder")
    target = folder.resolve()
    aside = target.with_name(target.name + ".partial")
    try:
        aside.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise SleuthError(f"{folder}: no folder can be here: part of its path is a file; name another") from None
    with (aside / LOCK).open("w") as lock:
        _lock(lock, aside)
        _check_plan(aside, plan)
        try:
            card = _resumed(corpus, aside, plan, open_writer, progress)
            write_card(card, aside)
            _put_in_place(aside, target)
        finally:
            if aside.exists() and not _checkpoints(aside):
                shutil.rmtree(aside)
    return card


def _resumed(
    corpus: Path,
    aside: Path,
    plan: Mapping[str, object],
    open_writer: Callable[[Path], IndexWriter],
    progress: Progress,
) -> IndexCard:
    """Go on with what is there, or from nothing where there is nothing of this corpus."""
    try:
        if _checkpoints(aside):
            return _fill(corpus, aside, open_writer(aside), progress)
    except _OtherCorpusError:
        pass
    _clear(aside)
    (aside / PLAN).write_text(json.dumps(plan))
    return _fill(corpus, aside, open_writer(aside), progress)


def _fill(corpus: Path, aside: Path, writer: IndexWriter, progress: Progress) -> IndexCard:
    digest, count, had = hashlib.sha256(), 0, writer.done
    known = {number: sha256 for number, sha256 in _checkpoints(aside).items() if number <= had}
    for batch in _batches(read_corpus(corpus)):
        fresh = batch[max(0, writer.done - count) :]
        count += len(batch)
        for passage in batch:
            digest.update(hashed_bytes(passage))
        if known.get(count, digest.hexdigest()) != digest.hexdigest():
            raise _OtherCorpusError
        if fresh:
            writer.add(fresh)
            if count % writer.every == 0:
                _checkpoint(aside, count, writer, digest.hexdigest())
        progress(count)
    if count == 0:
        raise SleuthError(f"{corpus}: no passages in this file")
    if count < had:
        raise _OtherCorpusError
    return writer.finish(digest.hexdigest())


class _OtherCorpusError(Exception):
    """What lies in the folder was made from other passages."""


def _batches(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    while batch := list(islice(passages, BATCH)):
        yield batch


def _checkpoint(aside: Path, count: int, writer: IndexWriter, sha256: str) -> None:
    """The hash first: whatever the writer holds after a kill, the hash of it is known."""
    with (aside / CHECKPOINTS).open("a") as lines:
        lines.write(json.dumps({"count": count, "sha256": sha256}) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    writer.checkpoint()


def _checkpoints(aside: Path) -> dict[int, str]:
    """Hash of the corpus so far by number of passages; a line that a kill cut short counts for nothing."""
    found = {}
    for line in (aside / CHECKPOINTS).read_bytes().splitlines() if (aside / CHECKPOINTS).exists() else ():
        try:
            checkpoint = json.loads(line)
        except ValueError:
            continue
        found[checkpoint["count"]] = checkpoint["sha256"]
    return found


def _check_plan(aside: Path, plan: Mapping[str, object]) -> None:
    if not _checkpoints(aside):
        return
    found = json.loads((aside / PLAN).read_text())
    wanted = json.loads(json.dumps(plan))
    changed = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    if changed:
        raise SleuthError(
            f"{aside}: an unfinished index made with another {', '.join(changed)}; give that again to go on with it, "
            "or remove the folder"
        )


def _lock(lock: IO[str], aside: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the kernel when this process dies
    except BlockingIOError:
        raise SleuthError(f"{aside}: another process is making this index; let it end") from None


def _clear(aside: Path) -> None:
    for path in aside.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _put_in_place(aside: Path, target: Path) -> None:
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    for name in OURS:
        (aside / name).unlink(missing_ok=True)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
