"""A folder of documents as a corpus and an index that follow it: only files that changed are read again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sleuth.data.pages import Page, document, files_below, name_as_text, split_text
from sleuth.host.atomic import replacing_file, write_text
from sleuth.host.variables import ROW
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.corpus import BEIR_CORPUS, contents_of, hash_input, page_passages, passage_of
from sleuth.retrieval.index_card import is_index, read_card
from sleuth.types import Passage, SleuthError

DOCUMENTS, INDEX = "documents.json", "index"
SAID = 10
"""Reasons for leaving files out that are said; the record has all."""
RETRIED = ("pip install", ROW.variable)
"""Words of reasons that may have gone though the file is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord:
    """A file as it was read: how many passages it has, or why it was `skipped`. `mtime` is in nanoseconds."""

    size: int
    mtime: int
    sha256: str = ""
    passages: int = 0
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRecord:
    """The files of the folder `source` by their paths in it, in the order of the corpus, whose hash this is."""

    source: str
    corpus_sha256: str = ""
    documents: dict[str, DocumentRecord]


_RECORD = TypeAdapter(FolderRecord)


def place_of(passage_id: str) -> tuple[str, int | None] | None:
    """The file of a passage and its page: `a/b.pdf#p12.3` is `("a/b.pdf", 12)`, and `a.txt#3` is `("a.txt", None)`;
    None for an id that is not of a folder."""
    match = re.fullmatch(r"(.*)#(?:p(\d+)\.)?\d+", passage_id)
    return None if match is None else (match[1], int(match[2]) if match[2] else None)


def update_folder(source: Path, home: Path, say: Callable[[str], None]) -> FolderRecord:
    """Brings the corpus, the record of files and the index in `home` up to date with the documents of `source`, and
    says what is newly left out. A kill leaves the old ones, or files of which the next call notices that they do not
    belong together and makes them anew. Raises SleuthError for a home of another folder, and if there is nothing to
    read."""
    if not source.is_dir():
        raise SleuthError(f"{source}: no such folder")
    home.mkdir(parents=True, exist_ok=True)
    if (old := read_record(home)) is None:
        if any(home.iterdir()):  # a run, or a world, whose corpus and index would be replaced
            raise SleuthError(f"{home}: has files that are not of a folder of documents; name another with --run")
        old = FolderRecord(source=str(source.resolve()), documents={})
        _write_record(home, old)
    if old.source != str(source.resolve()):
        raise SleuthError(f"{home}: was made of {old.source}; name another with --run")
    corpus = home / BEIR_CORPUS
    lines = _lines_by_document(corpus, old)
    documents: dict[str, DocumentRecord] = {}
    names: dict[str, str] = {}
    digest = hashlib.sha256()
    with replacing_file(corpus) as partial:
        with partial.open("w", encoding="utf-8") as out:
            for file, reason in files_below(source.resolve(), home.resolve()):
                name = name_as_text(file.relative_to(source.resolve()).as_posix())
                record, rows = _document(file, name, reason, old.documents.get(name), names, lines.get(name))
                if name in documents:
                    continue
                documents[name] = record
                for row in rows or ():
                    digest.update(hash_input(passage_of(json.loads(row), name)))
                    out.write(row)
        if not any(record.passages for record in documents.values()):
            raise SleuthError(f"{source}: no document with text in this folder", *_left_out(documents))
    record = FolderRecord(source=old.source, corpus_sha256=digest.hexdigest(), documents=documents)
    _write_record(home, record)
    index = home / INDEX
    if not is_index(index) or read_card(index).corpus_sha256 != record.corpus_sha256:
        build_index(corpus, index)
    for line in _left_out({name: one for name, one in documents.items() if old.documents.get(name) != one}):
        say(f"{source}: {line}")
    return record


def read_record(home: Path) -> FolderRecord | None:
    """The record in a home; None without one."""
    try:
        return _RECORD.validate_json((home / DOCUMENTS).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise SleuthError(f"{home / DOCUMENTS}: cannot be read as a record of documents; name another --run") from None


def _write_record(home: Path, record: FolderRecord) -> None:
    write_text(home / DOCUMENTS, json.dumps(asdict(record), ensure_ascii=False, indent=1) + "\n")


def _lines_by_document(corpus: Path, old: FolderRecord) -> dict[str, list[str]]:
    """The lines of the corpus by document; none if it is not that of the record."""
    found: dict[str, list[str]] = {}
    digest = hashlib.sha256()
    try:
        with corpus.open(encoding="utf-8") as lines:
            for line in lines:
                passage = passage_of(json.loads(line), str(corpus))
                digest.update(hash_input(passage))
                if (place := place_of(passage.id)) is None:
                    return {}
                found.setdefault(place[0], []).append(line)
    except (OSError, ValueError, SleuthError):
        return {}
    return found if digest.hexdigest() == old.corpus_sha256 else {}


def _document(
    file: Path, name: str, reason: str, old: DocumentRecord | None, firsts: dict[str, str], lines: list[str] | None
) -> tuple[DocumentRecord, list[str] | None]:
    """The record of a file and its rows, which are `lines` if it is as it was."""
    try:
        status = file.lstat()
        size, mtime = status.st_size, status.st_mtime_ns
        if not reason and size > ROW.bytes:  # of a table too, whose rows are held until all of them are read
            reason = ROW.exceeded()
        if reason:
            return DocumentRecord(size=size, mtime=mtime, skipped=reason), None
        same = old is not None and (old.size, old.mtime) == (size, mtime) and old.sha256
        sha256 = same or _sha256(file)
    except OSError as error:
        return DocumentRecord(size=0, mtime=0, skipped=f"cannot be read: {error.strerror or error}"), None
    if (first := firsts.setdefault(sha256, name)) != name:
        return DocumentRecord(size=size, mtime=mtime, sha256=sha256, skipped=f"the same as {first}"), None
    if old is not None and old.sha256 == sha256:
        if old.passages and lines is not None and len(lines) == old.passages:
            return DocumentRecord(size=size, mtime=mtime, sha256=sha256, passages=old.passages), lines
        lasting = old.skipped and not old.skipped.startswith("the same as ")
        if lasting and not any(word in old.skipped for word in RETRIED):
            return DocumentRecord(size=size, mtime=mtime, sha256=sha256, skipped=old.skipped), None
    try:
        rows = [
            json.dumps({"id": one.id, "contents": contents_of(one)}, ensure_ascii=False) + "\n"
            for one in _passages(file, name)
        ]
        skipped = "" if rows else "has no text"
    except SleuthError as error:
        rows, skipped = [], str(error.args[0]).removeprefix(f"{file}: ")
    return DocumentRecord(size=size, mtime=mtime, sha256=sha256, passages=len(rows), skipped=skipped), rows


def _passages(file: Path, name: str) -> Iterator[Passage]:
    count = 0
    for where, found in document(file, {}):
        if isinstance(found, Page):
            yield from page_passages(name, found)
            continue
        passage = passage_of(found, where)
        for text in split_text(passage.text):
            count += 1
            yield Passage(id=f"{name}#{count}", title=passage.title or file.stem, text=text)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _left_out(documents: dict[str, DocumentRecord]) -> list[str]:
    """A line for each reason, with the first file that it keeps out."""
    names: dict[str, list[str]] = {}
    for name, record in documents.items():
        if record.skipped:
            names.setdefault(record.skipped, []).append(name)
    lines = [
        f"{found[0]}{f' and {len(found) - 1:,} more' if len(found) > 1 else ''}: left out: {reason}"
        for reason, found in names.items()
    ]
    return lines[:SAID] + [f"{len(lines) - SAID:,} more reasons: see {DOCUMENTS}"] * (len(lines) > SAID)
