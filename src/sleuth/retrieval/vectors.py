"""The files of a dense index: vectors of faiss (extra `dense`) by inner product, and passages by row."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sleuth.retrieval.corpus import contents_of, hash_of_id, passage_of
from sleuth.retrieval.encoder import HOW_TO_INSTALL
from sleuth.types import Passage, SleuthError

HEADER = struct.Struct("<4siqqqBiQ")
"""The header of faiss' flat index file: name, width, rows, two unused numbers, trained, metric, count of floats."""
FLAT_INNER_PRODUCT, UNUSED, INNER_PRODUCT = b"IxFI", 1 << 20, 0
PROBED_SHARE, MIN_PROBED = 1 / 16, 64  # lists searched per query; 16 of 256 lost 6 in 100 passages


class FlatWriter:
    """Streams vectors into a flat faiss index file that is valid after every `flush`.

    Appends after the first `rows` of an existing file and truncates the rest.
    """

    def __init__(self, path: Path, width: int, rows: int = 0) -> None:
        self.width, self.rows = width, rows
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(HEADER.size + rows * width * 4)
        self._file.seek(0, 2)

    def append(self, vectors: np.ndarray) -> None:
        """Appends (n, width) float32."""
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self.rows += len(vectors)

    def flush(self) -> None:
        """Flushes the rows to the system and updates the header."""
        header = (FLAT_INNER_PRODUCT, self.width, self.rows, UNUSED, UNUSED, 1, INNER_PRODUCT, self.rows * self.width)
        self._file.seek(0)
        self._file.write(HEADER.pack(*header))
        self._file.seek(0, 2)
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


def open_vectors(path: Path) -> Any:
    """The faiss index in a file, memory-mapped if its type allows. Raises SleuthError if there is none."""
    faiss = load_faiss()
    try:
        with path.open("rb") as file:
            flat = file.read(4) in (FLAT_INNER_PRODUCT, b"IxF2", b"IxFl")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if flat else faiss.IO_FLAG_MMAP)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[-200:]
        raise SleuthError(f"{path}: no faiss index could be opened here: {reason}") from None
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise SleuthError(f"{path}: a faiss index of distances; expected one of inner products (METRIC_INNER_PRODUCT)")
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = max(MIN_PROBED, round(index.nlist * PROBED_SHARE))
    return index


def vector_settings(index: Any) -> dict[str, Any]:
    """How a faiss index keeps and searches its vectors, as fields of an index card."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexFlat):
        return {"storage": "flat"}
    if not isinstance(index, faiss.IndexIVF):
        return {"storage": type(index).__name__}
    storage = type(index).__name__
    if isinstance(index, faiss.IndexIVFScalarQuantizer):
        storage = f"ivf-sq{8 * index.code_size // index.d}"
    elif isinstance(index, faiss.IndexIVFPQ):
        storage = "ivf-pq"
    return {"storage": storage, "lists": index.nlist, "probes": min(index.nprobe, index.nlist)}


def load_faiss() -> Any:
    """The faiss module. Raises SleuthError with the install command if it is missing."""
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SleuthError(HOW_TO_INSTALL) from None
    return faiss


def mapped_rows(flat: Path) -> np.ndarray:
    """The (rows, width) float32 of a flat file, memory-mapped."""
    with flat.open("rb") as file:
        _, width, rows, *_ = HEADER.unpack(file.read(HEADER.size))
    return np.memmap(flat, dtype="<f4", mode="r", offset=HEADER.size, shape=(rows, width))


OFFSET = np.dtype("<u8")


class PassageFile:
    """Random access to the rows of a .jsonl corpus, memory-mapped."""

    def __init__(self, corpus: Path, offsets: Path) -> None:
        """Raises SleuthError if one of the two cannot be read."""
        self._corpus = corpus
        self._lock = Lock()
        self._rows_by_hash: tuple[np.ndarray, np.ndarray] | None = None
        try:
            self._starts = np.memmap(offsets, dtype=OFFSET, mode="r")
            with corpus.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SleuthError(f"{corpus}: the passages of this index cannot be read ({error})") from None

    def __len__(self) -> int:
        return len(self._starts)

    def row_of(self, passage_id: str) -> int | None:
        """The row with this id, None if there is none.

        Ids that count up from 0 or 1 are found at once. Otherwise the first call reads the ids of all rows, 10
        microseconds each, and keeps 16 bytes of each.
        """
        number = int(passage_id) if len(passage_id) < 20 and passage_id.isdecimal() else -1
        for row in (number, number - 1):
            if 0 <= row < len(self) and self.passage(row).id == passage_id:
                return row
        with self._lock:
            if self._rows_by_hash is None:
                self._rows_by_hash = self._hashed_rows()
        hashes, rows = self._rows_by_hash
        hashed = np.uint64(hash_of_id(passage_id))
        equal = slice(hashes.searchsorted(hashed), hashes.searchsorted(hashed, side="right"))
        return next((int(row) for row in rows[equal] if self.passage(row).id == passage_id), None)

    def _hashed_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The sorted hashes of all ids, and their rows."""
        ids = (hash_of_id(self.passage(row).id) for row in range(len(self)))
        hashes = np.fromiter(ids, dtype=np.uint64, count=len(self))
        rows = hashes.argsort(kind="stable")
        return hashes[rows], rows

    def passage(self, row: int, score: float = 0.0) -> Passage:
        """The passage of a row, with this score."""
        start = int(self._starts[row])
        end = self._text.find(b"\n", start)
        try:
            fields = json.loads(self._text[start : end if end >= 0 else len(self._text)])
            return replace(passage_of(fields, f"row {row}"), score=score)
        except (ValueError, SleuthError) as error:
            reason = f"row {row} is no passage: {error}"
            raise SleuthError(f"{self._corpus}: the passages of this index are damaged ({reason})") from None


class PassageFileWriter:
    """Appends passages to a corpus and its offsets, after their first `rows`; truncates the rest."""

    def __init__(self, corpus: Path, offsets: Path, rows: int = 0) -> None:
        self._corpus, self._offsets = (open(path, "ab") for path in (corpus, offsets))  # noqa: SIM115 - until `close`
        if rows * OFFSET.itemsize < self._offsets.tell():
            self._corpus.truncate(int(np.memmap(offsets, dtype=OFFSET, mode="r")[rows]))
            self._offsets.truncate(rows * OFFSET.itemsize)
        self._end = self._corpus.seek(0, 2)

    def append(self, passages: Sequence[Passage]) -> None:
        """Appends one row per passage."""
        rows = [{"id": passage.id, "contents": contents_of(passage)} for passage in passages]
        lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
        ends = self._end + np.cumsum([len(line) for line in lines], dtype=OFFSET)
        self._corpus.write(b"".join(lines))
        self._offsets.write((ends - np.array([len(line) for line in lines], dtype=OFFSET)).tobytes())
        self._end += sum(map(len, lines))

    def flush(self) -> None:
        """Flushes both files to the system."""
        self._corpus.flush()
        self._offsets.flush()

    def close(self) -> None:
        """Flushes and closes both files."""
        self._corpus.close()
        self._offsets.close()


def find_rows(corpus: Path, offsets: Path) -> int:
    """Writes the offset of each row of a .jsonl corpus; returns the number of rows."""
    start = rows = 0
    with corpus.open("rb") as lines, offsets.open("wb") as file:
        for line in lines:
            if line.strip():
                file.write(np.array(start, dtype=OFFSET).tobytes())
                rows += 1
            start += len(line)
    return rows
