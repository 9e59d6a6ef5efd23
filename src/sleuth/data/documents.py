"""Loads texts as documents (plain text, rows with a `text`, the layout of FineWeb-Edu) and splits them into parts.

A row has `text` and may have `id`, `url`, `source` (or `data_source`) and `type`. If its ending follows from its
beginning, it has `cut` (the number of characters before the ending) and `golden_answers` (what a right ending names).
`thoughts` are `{"at": characters before it, "text": "..."}`; rows written by a stage of `kind = "annotate"` have
`raw_text` instead of `text`, and the `origin` of their document. Instead of `thoughts` there may be a copy of the text
with the thoughts in it (`sleuth.think.splicing`). A file of plain text is one document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.hub import HubLocation, files_below, files_of_split, local_file
from sleuth.data.layouts import copy_layouts
from sleuth.data.pages import name_as_text
from sleuth.data.rows import (
    DAMAGED,
    ENDINGS,
    Row,
    checked_text,
    opened,
    rows_and_faults,
    text_of,
    texts_of,
    valid_row,
)
from sleuth.host.variables import ROW
from sleuth.recipe.data import Part
from sleuth.types import Document, SleuthError, Thought

PLAIN = (".txt", ".txt.gz")
TEXT_ENDINGS = (*PLAIN, *ENDINGS)
COLUMNS = (
    "id",
    "text",
    "raw_text",
    "url",
    "origin",
    "source",
    "data_source",
    "type",
    "cut",
    "golden_answers",
    "thoughts",
)
"""The columns read from a parquet file, besides those of copies with thoughts."""
PARTS: dict[Part, int] = {"sft": 500, "rl": 438, "held_out": 62}
"""The share of origins per part, in thousandths."""


def read_documents(path: Path, skipped: Callable[[], None] = lambda: None) -> Iterator[Document]:
    """The documents of a file, or of all files of a folder in the order of their names, local or on the hub; files on
    the hub are downloaded one by one as they are reached.

    A text that equals an earlier one up to white space is skipped, with a call of `skipped`. Raises SleuthError with
    file:line for a malformed row and a repeated id.
    """
    ids: set[str] = set()
    digests: set[bytes] = set()
    for where, document in documents_and_faults(path):
        if isinstance(document, SleuthError):
            raise document
        if document.id in ids:
            raise SleuthError(f"{where}: id {document.id!r} was used by an earlier document; ids should be unique")
        ids.add(document.id)
        if (digest := text_digest(document.text)) in digests:
            skipped()
            continue
        digests.add(digest)
        yield document


def documents_and_faults(path: Path) -> Iterator[tuple[str, Document | SleuthError]]:
    """(where, document or error) for every row: as `read_documents`, but continues after errors and keeps repeats."""
    files = files_in(path)
    for file in files:
        name = name_as_text(str(file.relative_to(path)) if path in file.parents else file.name)
        if file.name.endswith(PLAIN):
            yield str(file), _plain(local_file(file), name)
            continue
        for where, row in rows_and_faults(local_file(file), (*COLUMNS, *(copy.column for copy in copy_layouts()))):
            try:
                yield where, document_of(valid_row(row), where, f"{name}:" if len(files) > 1 else "row_")
            except SleuthError as error:
                yield where, error


def files_in(path: Path) -> list[Path]:
    """The text files of a folder, local or on the hub, or of a split there; or the file itself."""
    if path.name.endswith(TEXT_ENDINGS):
        return [path]
    location = HubLocation.read(path)
    if location is not None:
        there = [path / file for file in sorted(files_below(location))]
        there = there or [Path(str(file)) for file in files_of_split(location)]
    else:
        there = sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in there if file.name.endswith(TEXT_ENDINGS)]
    if not files:
        endings = f"{', '.join(TEXT_ENDINGS[:-1])} or {TEXT_ENDINGS[-1]}"
        raise SleuthError(f"{path}: no texts there; name a file that ends in {endings}, or a folder of such files")
    return files


def is_text(row: Row) -> bool:
    """Whether a row is a document rather than a question."""
    return any(row.get(key) is not None for key in ("text", "raw_text")) and row.get("question") is None


def part_of(origin: str) -> Part:
    """The part of a document, by a hash of its origin alone, so that no run and no order of files can mix the parts."""
    bucket = int.from_bytes(hashlib.blake2b(origin.encode(), digest_size=8).digest(), "big") % sum(PARTS.values())
    for part, share in PARTS.items():
        if bucket < share:
            return part
        bucket -= share
    raise AssertionError("the shares add up to their sum")


def text_digest(text: str) -> bytes:
    """A digest that is equal for texts that differ only in white space."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def document_of(row: Row, where: str, id_prefix: str = "row_") -> Document:
    """One row as a document. A row without an id gets `id_prefix` and its line number; without a `url`, the id is the
    origin. Raises SleuthError."""
    text, thoughts, altered = _text_and_thoughts(row, where)
    given = row.get("id")
    id_ = f"{id_prefix}{where.rpartition(':')[2]}" if given is None else checked_text(given, "id", where)
    origin = next((checked_text(row[key], key, where) for key in ("origin", "url") if row.get(key)), id_)
    source = row.get("source") or row.get("data_source")
    return Document(
        id=id_,
        text=text,
        origin=origin.partition("://")[2].rstrip("/") or origin,
        source=checked_text(source, "source", where) if source else "",
        kind=checked_text(row["type"], "type", where) if row.get("type") else "",
        cut=_cut(row.get("cut"), text, where),
        golden_answers=texts_of(row.get("golden_answers"), "golden_answers", where),
        thoughts=thoughts,
        altered=altered,
    )


def _plain(file: Path, name: str) -> Document | SleuthError:
    try:
        with opened(file) as lines:
            content = lines.read(ROW.bytes + 1)
        if len(content) > ROW.bytes:
            return SleuthError(f"{file}: the text is {ROW.exceeded()}, or split the text")
        text = content.decode()
    except SleuthError as error:
        return error
    except DAMAGED as error:
        return SleuthError(f"{file}: damaged gzip file ({error})")
    except OSError as error:
        return SleuthError(f"{file}: cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        return SleuthError(f"{file}: not UTF-8 text")
    if not text.strip():
        return SleuthError(f"{file}: is empty")
    return Document(id=name, text=text, origin=name)


def _text_and_thoughts(row: Row, where: str) -> tuple[str, tuple[Thought, ...], bool]:
    """(text, thoughts, altered): altered if the copy with thoughts is another text. If the row has a `cut`, which
    counts characters, white space must be equal too."""
    text = text_of(row, "raw_text" if "text" not in row and "raw_text" in row else "text", where)
    copy = next((copy for copy in copy_layouts() if row.get(copy.column) is not None), None)
    if row.get("thoughts") is not None or copy is None:
        return text, tuple(_thoughts(row.get("thoughts"), text, where)), False
    split = copy.split(checked_text(row[copy.column], copy.column, where), text)
    if split is None or (row.get("cut") is not None and split[0] != text):
        return text, (), True
    return *split, False


def _cut(value: Any, text: str, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < len(text):
        raise SleuthError(f"{where}: `cut` should be a number of characters inside the text, found {value!r}")
    return value


def _thoughts(value: Any, text: str, where: str) -> Iterator[Thought]:
    entries = [] if value is None else value
    if isinstance(entries, str) or not isinstance(entries, Sequence | np.ndarray):
        raise SleuthError(f'{where}: `thoughts` should be a list such as [{{"at": 120, "text": "..."}}]')
    before = 0
    for number, entry in enumerate(entries):
        at = entry.get("at") if isinstance(entry, dict) else None
        if not isinstance(at, int) or isinstance(at, bool) or not before <= at <= len(text):
            raise SleuthError(
                f"{where}: `thoughts.{number}.at` should be a number of characters from {before} to {len(text)}, "
                f"found {at!r}"
            )
        before = at
        yield Thought(at=at, text=checked_text(entry.get("text"), f"thoughts.{number}.text", where))
