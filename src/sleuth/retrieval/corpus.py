"""A corpus on disk as a stream of passages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sleuth.data.rows import read_rows, text_of
from sleuth.types import Passage, SleuthError


def read_corpus(path: Path) -> Iterator[Passage]:
    r"""Stream the passages of a .jsonl, .jsonl.gz or .parquet file, laid out as in Search-R1 (arXiv:2503.09516).

    A row `{"id": "17", "contents": "\"Ada Voss\"\nAda Voss was born in Tarn."}` becomes
    `Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn.")`. Only the ids seen so far stay in memory,
    and little of those.
    Raises SleuthError with file:line for a row without `id` or `contents` and for an id seen before.
    """
    seen = SeenIds()
    for where, row in read_rows(path):
        passage = parse_contents(text_of(row, "id", where), text_of(row, "contents", where))
        if not seen.new(passage.id):
            raise SleuthError(f"{where}: id {passage.id!r} was used by an earlier passage; ids should be unique")
        yield passage


def parse_contents(passage_id: str, contents: str) -> Passage:
    r"""Split `"Title"\ntext`: the first line is the title, less its quotes. A lone line without quotes is all text."""
    first, line_break, text = contents.partition("\n")
    quoted = len(first) > 1 and first.startswith('"') and first.endswith('"')
    if not line_break and not quoted:
        return Passage(id=passage_id, title="", text=contents)
    return Passage(id=passage_id, title=first[1:-1] if quoted else first, text=text)


def contents_of(passage: Passage) -> str:
    r"""`"Title"\ntext`, from which `parse_contents` gives the same title and text again."""
    return f'"{passage.title}"\n{passage.text}'


def corpus_hash(passages: Iterable[Passage]) -> str:
    """sha256 of the ids, titles and texts in order; the same whatever file format held them."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(hashed_bytes(passage))
    return digest.hexdigest()


def hashed_bytes(passage: Passage) -> bytes:
    """What one passage adds to the hash, for those who hash while they stream."""
    return json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False).encode() + b"\n"


PENDING = 2**20  # hashes in a set, 100 bytes each, before they are sorted into the array at 8 bytes each


class SeenIds:
    """`new(id)` tells whether an id comes for the first time.

    Ids that count up from "0" or "1" (wiki-18's do) take no memory at all. Any other is kept as 64 bits of its
    BLAKE2 hash: among 21 million ids the chance that two different ones look equal is 1 in 80,000.
    """

    def __init__(self) -> None:
        self._first: int | None = None  # ids from here, a number, ...
        self._next = 0  # ... to here, exclusive, were seen
        self._pending: set[int] = set()
        self._sorted = np.empty(0, dtype=np.uint64)

    def new(self, passage_id: str) -> bool:
        """Whether `passage_id` was not asked about before."""
        if self._first is None and passage_id in ("0", "1"):
            self._first = self._next = int(passage_id)
        if self._first is not None:
            if passage_id == str(self._next):
                self._next += 1
                return not self._kept(_hash(passage_id))
            number = int(passage_id) if len(passage_id) < 20 and passage_id.isdecimal() else -1
            if self._first <= number < self._next and passage_id == str(number):  # "007" is not "7"
                return False
        hashed = _hash(passage_id)
        if self._kept(hashed):
            return False
        self._pending.add(hashed)
        if len(self._pending) == PENDING:
            more = np.fromiter(self._pending, dtype=np.uint64, count=PENDING)
            self._sorted = np.sort(np.concatenate([self._sorted, more]))
            self._pending.clear()
        return True

    def _kept(self, hashed: int) -> bool:
        place = int(self._sorted.searchsorted(np.uint64(hashed))) if len(self._sorted) else 0
        return hashed in self._pending or (place < len(self._sorted) and int(self._sorted[place]) == hashed)


def _hash(passage_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "little")
