"""A corpus on disk as a stream of passages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sleuth.data.columns import IDS, QUESTIONS, TEXTS, id_of, require_passage, text_column
from sleuth.data.rows import Row, checked_text, read_rows, text_of
from sleuth.types import Passage, SleuthError

BEIR_CORPUS = "corpus.jsonl"


def corpus_file(path: Path) -> Path:
    """The file of passages at a path: of a folder in BEIR's layout its corpus.jsonl, else the path itself, which may be
    a folder of texts."""
    return path / BEIR_CORPUS if (path / BEIR_CORPUS).is_file() else path


def read_corpus(path: Path) -> Iterator[Passage]:
    r"""Streams the passages of a .jsonl, .jsonl.gz, .parquet, .csv, .tsv or .json file in the format of Search-R1
    (arXiv:2503.09516), of BEIR (arXiv:2104.08663), or with a `text` and perhaps a `title` and an `id`.

    A row `{"id": "17", "contents": "\"Ada Voss\"\nAda Voss was born in Tarn."}`, or a row
    `{"_id": "17", "title": "Ada Voss", "text": "Ada Voss was born in Tarn."}`, becomes
    `Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn.")`. Only hashes of the ids stay in memory.
    Raises SleuthError with file:line for a malformed row and for a repeated id.
    """
    seen = SeenIds()
    for at, (where, row) in enumerate(read_rows(path, (*IDS, *TEXTS, *QUESTIONS, "title"))):
        if at == 0:
            require_passage(row, where)
        passage = passage_of(row, where)
        if not seen.add(passage.id):
            raise SleuthError(f"{where}: id {passage.id!r} was used by an earlier passage; ids should be unique")
        yield passage


def passage_of(row: Row, where: str) -> Passage:
    """The passage of a row in any of these formats. Raises SleuthError, beginning with `where`, if there is none."""
    column = text_column(row) or ("text" if "_id" in row else "contents")
    name = checked_text(id_of(row, where), "id" if "id" in row else "_id", where)
    if column == "contents":
        return parse_contents(name, text_of(row, column, where))
    title = " ".join(_beir_text(row, "title", where).split()) if row.get("title") is not None else ""
    return Passage(id=name, title=title, text=_beir_text(row, column, where))


def _beir_text(row: Row, key: str, where: str) -> str:
    """A text that may be blank, as in some of BEIR's sets: such a passage is not found, but counts."""
    text = row.get(key)
    return "" if isinstance(text, str) and not text.strip() else text_of(row, key, where)


def read_ids(path: Path) -> set[str]:
    """The ids of the rows of a file, which need nothing else, or the lines of a .txt file. Raises SleuthError if there
    are none."""
    if path.suffix == ".txt":
        try:
            ids = {line.strip() for line in path.read_text(encoding="utf-8").splitlines()} - {""}
        except FileNotFoundError:
            raise SleuthError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SleuthError(f"{path}: cannot be read as ids, one a line ({error})") from None
    else:
        ids = set[str]()
        for where, row in read_rows(path, IDS):
            if all(row.get(name) is None for name in IDS):
                raise SleuthError(f'{where}: no id; a row should have one, as {{"id": "17"}}')
            ids.add(checked_text(id_of(row, where), "id", where))
    if not ids:
        raise SleuthError(f"{path}: no ids in this file")
    return ids


def parse_contents(passage_id: str, contents: str) -> Passage:
    r"""Splits `"Title"\ntext`: the first line is the title, without its quotes. A single unquoted line is all text."""
    first, line_break, text = contents.partition("\n")
    quoted = len(first) > 1 and first.startswith('"') and first.endswith('"')
    if not line_break and not quoted:
        return Passage(id=passage_id, title="", text=contents)
    return Passage(id=passage_id, title=first[1:-1] if quoted else first, text=text)


def contents_of(passage: Passage) -> str:
    r"""`"Title"\ntext`, the inverse of `parse_contents`."""
    return f'"{passage.title}"\n{passage.text}'


def corpus_hash(passages: Iterable[Passage]) -> str:
    """The sha256 of the ids, titles and texts in order, independent of the file format."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(hash_input(passage))
    return digest.hexdigest()


def hash_input(passage: Passage) -> bytes:
    """The bytes that one passage adds to `corpus_hash`, for hashing while streaming."""
    return json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False).encode() + b"\n"


MAX_PENDING_IDS = 2**20  # hashes in a set (100 bytes each) before they are merged into a sorted array (8 bytes each)


class SeenIds:
    """A compact set of passage ids. Those that count up from "0" or "1" (as in wiki-18) take no memory, others 64 bits
    of their BLAKE2 hash: among 21 million ids the chance of a collision is 1 in 80,000."""

    def __init__(self) -> None:
        self._first: int | None = None  # the ids `_first` ...
        self._next = 0  # ... to `_next`, exclusive, were added
        self._pending: set[int] = set()
        self._sorted = np.empty(0, dtype=np.uint64)

    def add(self, passage_id: str) -> bool:
        """Adds `passage_id`; returns whether it is new."""
        if self._first is None and passage_id in ("0", "1"):
            self._first = self._next = int(passage_id)
        if self._first is not None:
            if passage_id == str(self._next):
                self._next += 1
                return not self._contains(hash_of_id(passage_id))
            number = int(passage_id) if len(passage_id) < 20 and passage_id.isdecimal() else -1
            if self._first <= number < self._next and passage_id == str(number):  # "007" is not "7"
                return False
        hashed = hash_of_id(passage_id)
        if self._contains(hashed):
            return False
        self._pending.add(hashed)
        if len(self._pending) == MAX_PENDING_IDS:
            more = np.fromiter(self._pending, dtype=np.uint64, count=MAX_PENDING_IDS)
            self._sorted = np.sort(np.concatenate([self._sorted, more]))
            self._pending.clear()
        return True

    def _contains(self, hashed: int) -> bool:
        index = int(self._sorted.searchsorted(np.uint64(hashed))) if len(self._sorted) else 0
        return hashed in self._pending or (index < len(self._sorted) and int(self._sorted[index]) == hashed)


def hash_of_id(passage_id: str) -> int:
    """64 bits of an id's BLAKE2 hash."""
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "little")
