"""Texts as documents: plain text, rows with a `text`, the layout of FineWeb-Edu; and which of them are for what.

A row holds `text` and may hold `id`, `url`, `source` (or `data_source`), `type`, and, where the ending of the text is
known to follow from its beginning, `cut` (the number of characters before the ending) and `golden_answers` (what a
right ending names). `thoughts` are `{"at": characters before it, "text": "..."}`; the rows that `sleuth annotate
thoughts` writes hold `raw_text` in the place of `text`, and the `origin` of their document. Published sets have no
`thoughts`, but `augmented_text` with thoughts in it (`sleuth.data.splicing`). A file of plain text is one document.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.hub import HubLocation, files_below, local_file
from sleuth.data.rows import ENDINGS, Row, checked_text, rows_and_faults, text_of, texts_of
from sleuth.data.splicing import split_copy
from sleuth.recipe.text import Part
from sleuth.types import Document, SleuthError, Thought

PLAIN = (".txt", ".txt.gz")
TEXT_ENDINGS = (*PLAIN, *ENDINGS)
COLUMNS = (
    *("id", "text", "raw_text", "augmented_text", "url", "origin", "source", "data_source", "type"),
    *("cut", "golden_answers", "thoughts"),
)
"""All that is read of a parquet file."""
PARTS: dict[Part, int] = {"sft": 500, "rl": 438, "held_out": 62}
"""How many of a thousand origins each part gets."""

Found = tuple[str, Document | SleuthError]
"""The place that a message can point at, and the document there or what is wrong with it."""


def read_documents(path: Path, skipped: Callable[[], None] = lambda: None) -> Iterator[Document]:
    """The documents of a file, or of all files of a folder in the order of their names; either may lie on the hub,
    where a file is downloaded when its turn comes.

    A text that an earlier document has, but for white space, is passed over, and `skipped` called. Raises SleuthError
    with file:line for a row that is no document, and for an id that was used before.
    """
    ids: set[str] = set()
    seen: set[bytes] = set()
    for where, found in documents_and_faults(path):
        if isinstance(found, SleuthError):
            raise found
        if found.id in ids:
            raise SleuthError(f"{where}: id {found.id!r} was used by an earlier document; ids should be unique")
        ids.add(found.id)
        if (digest := text_digest(found.text)) in seen:
            skipped()
            continue
        seen.add(digest)
        yield found


def documents_and_faults(path: Path) -> Iterator[Found]:
    """`read_documents` that goes on behind a row that is no document, and repeats what is repeated."""
    files = files_in(path)
    for file in files:
        name = str(file.relative_to(path)) if file != path else file.name
        if file.name.endswith(PLAIN):
            yield str(file), _plain(local_file(file), name)
            continue
        for where, row in rows_and_faults(local_file(file), COLUMNS):
            unnamed = f"{name}:" if len(files) > 1 else "row_"
            yield where, row if isinstance(row, SleuthError) else _document(row, where, unnamed)


def files_in(path: Path) -> list[Path]:
    """The files of a folder, here or on the hub, that can be read; or the file itself."""
    if path.name.endswith(TEXT_ENDINGS):
        return [path]
    place = HubLocation.read(path)
    if place is not None:
        found = [path / file for file in sorted(files_below(place)) if file.endswith(TEXT_ENDINGS)]
    elif path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.name.endswith(TEXT_ENDINGS)]
    else:
        found = []
    if not found:
        endings = f"{', '.join(TEXT_ENDINGS[:-1])} or {TEXT_ENDINGS[-1]}"
        raise SleuthError(f"{path}: no texts there; name a file that ends in {endings}, or a folder of such files")
    return found


def is_text(row: Row) -> bool:
    """Whether a row is a document and no question."""
    return any(row.get(key) is not None for key in ("text", "raw_text")) and row.get("question") is None


def part_of(origin: str) -> Part:
    """What a document is for: a property of its origin alone, so that no run and no order of files can mix the
    parts."""
    place = int.from_bytes(hashlib.blake2b(origin.encode(), digest_size=8).digest(), "big") % sum(PARTS.values())
    for part, share in PARTS.items():
        if place < share:
            return part
        place -= share
    raise AssertionError("the shares add up to their sum")


def text_digest(text: str) -> bytes:
    """Equal for texts that differ in white space alone."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def document_of(row: Row, where: str, unnamed: str = "row_") -> Document:
    """One row as a document. A row without an id is named after its line, behind `unnamed`; without a `url`, its id is
    its origin. Raises SleuthError."""
    text, thoughts, altered = _text_and_thoughts(row, where)
    given = row.get("id")
    id_ = f"{unnamed}{where.rpartition(':')[2]}" if given is None else checked_text(given, "id", where)
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


def _document(row: Row, where: str, unnamed: str) -> Document | SleuthError:
    try:
        return document_of(row, where, unnamed)
    except SleuthError as error:
        return error


def _plain(file: Path, name: str) -> Document | SleuthError:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = content.decode()
    except OSError as error:
        return SleuthError(f"{file}: cannot be read: {error.strerror or error}")
    except (EOFError, zlib.error) as error:
        return SleuthError(f"{file}: damaged gzip file ({error})")
    except UnicodeDecodeError:
        return SleuthError(f"{file}: not UTF-8 text")
    if not text.strip():
        return SleuthError(f"{file}: is empty")
    return Document(id=name, text=text, origin=name)


def _text_and_thoughts(row: Row, where: str) -> tuple[str, tuple[Thought, ...], bool]:
    """The text, its thoughts, and whether these stand in a copy that is another text. Where the row says where to cut,
    which is counted in characters, white space must be the same too."""
    text = text_of(row, "raw_text" if "text" not in row and "raw_text" in row else "text", where)
    if row.get("thoughts") is not None or row.get("augmented_text") is None:
        return text, tuple(_thoughts(row.get("thoughts"), text, where)), False
    apart = split_copy(checked_text(row["augmented_text"], "augmented_text", where), text)
    if apart is None or (row.get("cut") is not None and apart[0] != text):
        return text, (), True
    return *apart, False


def _cut(found: Any, text: str, where: str) -> int | None:
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < len(text):
        raise SleuthError(f"{where}: `cut` should be a number of characters inside the text, found {found!r}")
    return found


def _thoughts(found: Any, text: str, where: str) -> Iterator[Thought]:
    entries = [] if found is None else found
    if isinstance(entries, str) or not isinstance(entries, Sequence | np.ndarray):
        raise SleuthError(f'{where}: `thoughts` should be a list such as [{{"at": 120, "text": "..."}}]')
    before = 0
    for number, entry in enumerate(entries):
        at = entry.get("at") if isinstance(entry, dict) else None
        if not isinstance(at, int) or isinstance(at, bool) or not before <= at <= len(text):
            raise SleuthError(
                f"{where}: `thoughts.{number}.at` should be a number of characters, from that of the thought before "
                f"it to the {len(text)} of the text, found {at!r}"
            )
        before = at
        yield Thought(at=at, text=checked_text(entry.get("text"), f"thoughts.{number}.text", where))
