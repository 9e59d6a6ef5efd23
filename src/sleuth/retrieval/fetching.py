"""A named corpus as an index: downloads what is missing, after saying what it will take on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.data.catalogue import Entry, location_of
from sleuth.data.hub import ProgressBar, RemoteFile, download, remote_file
from sleuth.types import SleuthError

BM25_BYTES = 900  # of an index on disk for each passage of 100 words: 660 of text, 240 of words
DENSE_BYTES = 760  # beside the vectors: the text and an offset, if the corpus is compressed
GIGABYTE = 10**9
JOINED = "vectors.faiss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a download and its index will take on disk, in bytes: `missing` of the files and of the index."""

    corpus: RemoteFile | None
    vectors: tuple[RemoteFile, ...]
    download: int
    index: int

    def line(self, folder: Path) -> str:
        """`21.6 GB to download and 18.9 GB for the index in DIR, which has 500.0 GB free`."""
        sizes = f"{_gb(self.download)} to download and {_gb(self.index)} for the index"
        return f"{sizes} in {folder}, which has {_gb(free_bytes(folder))} free"


def free_bytes(folder: Path) -> int:
    """The free bytes of the disk of a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.resolve().parent
    return shutil.disk_usage(folder).free


def needs_of(entry: Entry, folder: Path, *, dense: bool, from_hub: bool) -> Needs:
    """Asks the hub for the sizes of an entry's files. Raises SleuthError where the disk is too small for all of them,
    and for the index."""
    corpus = remote_file(location_of(entry.file)) if from_hub else None
    vectors = tuple(remote_file(location_of(file)) for file in entry.vectors) if from_hub and dense else ()
    files = ([corpus] if corpus else []) + list(vectors)
    there = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    index = entry.passages * (DENSE_BYTES if dense else BM25_BYTES)
    joining = max((file.size for file in vectors), default=0)  # a part is removed only once it is appended
    needed = Needs(
        corpus=corpus,
        vectors=vectors,
        download=max(0, sum(file.size for file in files) - there),
        index=index + joining,
    )
    if needed.download + needed.index > free_bytes(folder):
        raise SleuthError(f"{entry.name}: not enough disk: {needed.line(folder)}; name a DIR on a larger disk")
    return needed


def fetch_vectors(files: Sequence[RemoteFile], folder: Path, watch: ProgressBar) -> Path:
    """The parts of a faiss file, downloaded one after the other and joined. Each is removed once it is appended; an
    interrupted call goes on where it stopped."""
    target, partial = folder / JOINED, folder / f"{JOINED}.joining"
    total = sum(file.size for file in files)
    if target.exists() and target.stat().st_size == total:
        return target
    end = 0
    for file in files:
        end += file.size
        if partial.exists() and partial.stat().st_size >= end:
            (folder / file.name).unlink(missing_ok=True)
            continue
        append_file(download(file, folder, watch), partial, end - file.size)
        (folder / file.name).unlink()
    os.replace(partial, target)
    return target


def append_file(part: Path, target: Path, start: int) -> None:
    """Writes a file into another from byte `start` on, whatever a killed call left behind it."""
    target.touch()
    with part.open("rb") as source, target.open("r+b") as sink:
        sink.truncate(start)
        sink.seek(start)
        shutil.copyfileobj(source, sink, 2**22)
        sink.flush()
        os.fsync(sink.fileno())


def local_files(files: Sequence[Path], folder: Path, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """(corpus, vectors) of files that one has: the one with an ending of a corpus, and the others, in their order,
    joined if there are several. Raises SleuthError for a missing file and for none or several corpora."""
    for file in files:
        if not file.is_file():
            raise SleuthError(f"--from {file}: no such file")
    corpora = [file for file in files if file.name.endswith(tuple(endings))]
    if len(corpora) != 1:
        found = "none" if not corpora else " and ".join(map(str, corpora))
        raise SleuthError(f"--from: one file should be the corpus ({', '.join(endings)}), found {found}")
    parts = [file for file in files if file not in corpora]
    if len(parts) < 2:
        return corpora[0], parts[0] if parts else None
    size = sum(part.stat().st_size for part in parts)
    if size > free_bytes(folder):
        raise SleuthError(f"--from: joining the vectors needs {_gb(size)} in {folder}, which has too little free")
    folder.mkdir(parents=True, exist_ok=True)
    target, start = folder / JOINED, 0
    if not target.exists() or target.stat().st_size != size:
        for part in parts:
            append_file(part, folder / f"{JOINED}.joining", start)
            start += part.stat().st_size
        os.replace(folder / f"{JOINED}.joining", target)
    return corpora[0], target


def _gb(size: int) -> str:
    return f"{size / GIGABYTE:,.1f} GB"
