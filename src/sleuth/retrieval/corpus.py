"""A corpus on disk: as a stream of passages, and by row."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np

from sleuth.data.layouts import IDS, QUESTIONS, TEXTS, first_column, id_of, require_passage
from sleuth.data.pages import Page, name_as_text, pages_and_rows, split_text
from sleuth.data.questions import MAX_PROBLEMS, first_problems
from sleuth.data.rows import Row, checked_text, read_rows, text_of
from sleuth.host.atomic import replacing_file
from sleuth.types import Passage, SleuthError

BEIR_CORPUS = "corpus.jsonl"
PASSAGES, OFFSETS = "passages.jsonl", "passages.offsets"
"""The files of an index for `PassageFile`."""
OFFSET = np.dtype("<u8")


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
    column = first_column(row, TEXTS) or ("text" if "_id" in row else "contents")
    name = checked_text(id_of(row, where), "id" if "id" in row else "_id", where)
    if column == "contents":
        return parse_contents(name, text_of(row, column, where))
    title = " ".join(_beir_text(row, "title", where).split()) if row.get("title") is not None else ""
    return Passage(id=name, title=title, text=_beir_text(row, column, where))


def _beir_text(row: Row, key: str, where: str) -> str:
    """A text that may be blank, as in some of BEIR's sets: such a passage is not found, but counts."""
    text = row.get(key)
    return "" if isinstance(text, str) and not text.strip() else text_of(row, key, where)


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


def write_corpus(
    path: Path, out: Path, names: Mapping[str, str] | None = None, progress: Callable[[int], None] = lambda done: None
) -> int:
    """Writes the passages of a file to `out`, a .jsonl file in our layout, and returns their number.
    `names` adds names of columns: `{"text": "body"}`. Raises SleuthError for the first few faults, with the number of
    all; then `out` stays as it was."""
    problems: list[str] = []
    ids, count, found = SeenIds(), 0, 0
    is_new = not out.parent.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_file(out) as partial, partial.open("w", encoding="utf-8") as lines:
            for where, passage in _passages(path, names or {}):
                found += 1
                if isinstance(passage, Passage) and not ids.add(passage.id):
                    passage = SleuthError(
                        f"{where}: id {passage.id!r} was used by an earlier passage; ids should be unique"
                    )
                if isinstance(passage, SleuthError):
                    problems += passage.args
                    if len(problems) >= MAX_PROBLEMS:
                        break
                    continue
                lines.write(json.dumps({"id": passage.id, "contents": contents_of(passage)}, ensure_ascii=False) + "\n")
                count += 1
                progress(count)
            if problems:
                raise SleuthError(*first_problems(problems, found, path))
            if not count:
                raise SleuthError(f"{path}: no passages in it")
    except BaseException:
        if is_new:
            out.parent.rmdir()
        raise
    return count


def _passages(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Passage | SleuthError]]:
    """(place, passage or error) of all of a file. A page is split, a row is one passage."""
    is_first = True
    for where, found in pages_and_rows(path, names):
        if isinstance(found, SleuthError):
            yield where, found
        elif isinstance(found, Page):
            yield from ((where, passage) for passage in page_passages(name_as_text(path.name), found))
        else:
            if is_first:
                require_passage(found, where)
            is_first = False
            try:
                yield where, passage_of(found, where)
            except SleuthError as error:
                yield where, error


def page_passages(name: str, page: Page) -> Iterator[Passage]:
    """The passages of a page: `a.pdf#p12.3` is the third of page 12, and `a.txt#3` the third of a file without."""
    for number, part in enumerate(page.parts, start=1):
        for at, text in enumerate(split_text(part), start=1):
            yield Passage(id=f"{name}#p{number}.{at}" if page.numbered else f"{name}#{at}", title=page.title, text=text)


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
                ids = (hash_of_id(self.passage(row).id) for row in range(len(self)))
                hashes = np.fromiter(ids, dtype=np.uint64, count=len(self))
                rows = hashes.argsort(kind="stable")
                self._rows_by_hash = hashes[rows], rows
        hashes, rows = self._rows_by_hash
        hashed = np.uint64(hash_of_id(passage_id))
        equal = slice(hashes.searchsorted(hashed), hashes.searchsorted(hashed, side="right"))
        return next((int(row) for row in rows[equal] if self.passage(row).id == passage_id), None)

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
        ends = self._end + np.cumsum([0, *map(len, lines)], dtype=OFFSET)
        self._corpus.write(b"".join(lines))
        self._offsets.write(ends[:-1].tobytes())
        self._end = int(ends[-1])

    def flush(self) -> None:
        """Flushes both files to the system."""
        self._corpus.flush()
        self._offsets.flush()

    def close(self) -> None:
        """Flushes and closes both files."""
        self._corpus.close()
        self._offsets.close()


def find_rows(corpus: Path, offsets: Path) -> None:
    """Writes the offset of each row of a .jsonl corpus."""
    start = 0
    with corpus.open("rb") as lines, offsets.open("wb") as file:
        for line in lines:
            if line.strip():
                file.write(np.array(start, dtype=OFFSET).tobytes())
            start += len(line)
