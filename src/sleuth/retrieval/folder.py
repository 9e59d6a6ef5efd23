"""A folder of documents as a corpus and an index that follow it: only files that changed are read again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from sleuth import __version__
from sleuth.data.pages import NEEDS, Page, document, files_below, name_as_text, split_text
from sleuth.host.atomic import replacing_file, write_text
from sleuth.host.variables import ROW
from sleuth.recipe.shipped import DOCUMENTS, INDEX
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.corpus import BEIR_CORPUS, contents_of, hash_input, page_passages, passage_of
from sleuth.retrieval.index_card import is_index, read_card
from sleuth.types import Passage, SleuthError

SAID = 10
"""Reasons for leaving files out that are said; the record has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord:
    """A file as it was read: how many passages it has, or why it was `skipped`, which may be that it is the `same_as`
    another one. `mtime` is in nanoseconds."""

    size: int
    mtime: int
    sha256: str = ""
    passages: int = 0
    skipped: str = ""
    same_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRecord:
    """The files of the folder `source` by their paths in it, in the order of the corpus, whose hash this is. With
    another `reader`, files that were skipped are read again."""

    source: str
    reader: str = ""
    corpus_sha256: str = ""
    documents: dict[str, DocumentRecord]


_RECORD = TypeAdapter(FolderRecord)


def place_of(passage_id: str) -> tuple[str, int | None] | None:
    """The file of a passage and its page: `a/b.pdf#p12.3` is `("a/b.pdf", 12)`, and `a.txt#3` is `("a.txt", None)`;
    None for an id that is not of a folder."""
    match = re.fullmatch(r"(.*)#(?:p(\d+)\.)?\d+", passage_id)
    return None if match is None else (match[1], int(match[2]) if match[2] else None)


def update_folder(
    source: Path,
    home: Path,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    names: Mapping[str, str] | None = None,
    indexed: bool = True,
) -> FolderRecord:
    """Brings the corpus, the record of files and the index in `home`, if it should be `indexed`, up to date with the
    documents of `source`, and says what is newly left out. `names` adds names of columns of tables. A kill leaves the
    old ones, or files of which the next call notices that they do not belong together and makes them anew. Raises
    SleuthError for a home of another folder, and if there is nothing to read."""
    if not source.is_dir():
        raise SleuthError(f"{source}: {'is a file; name its folder' if source.exists() else 'no such folder'}")
    home.mkdir(parents=True, exist_ok=True)
    if (old := read_record(home)) is None:
        if any(home.iterdir()):  # a run, or a world, whose corpus and index would be replaced
            raise SleuthError(f"{home}: has files that are not of a folder of documents; name another folder")
        old = FolderRecord(source=str(source.resolve()), documents={})
        _write_record(home, old)
    if old.source != str(source.resolve()):
        raise SleuthError(f"{home}: was made of {old.source}; name another folder")
    files = list(files_below(source.resolve(), home.resolve()))
    try:
        with replacing_file(home / BEIR_CORPUS) as partial:
            with partial.open("wb") as out:
                update = _Update(old=old, corpus=home / BEIR_CORPUS, out=out, names=names or {})
                for done, (file, reason) in enumerate(files, start=1):
                    update.add(file, name_as_text(file.relative_to(source.resolve()).as_posix()), reason)
                    progress(done, len(files))
            documents = update.documents
            if not any(record.passages for record in documents.values()):
                raise SleuthError(f"{source}: no document with text in this folder", *_left_out(documents))
    except SleuthError:
        if not old.documents:  # nothing was made here before
            (home / DOCUMENTS).unlink()
            with suppress(OSError):
                home.rmdir()
        raise
    record = FolderRecord(
        source=old.source, reader=update.reader, corpus_sha256=update.digest.hexdigest(), documents=documents
    )
    _write_record(home, record)
    index = home / INDEX
    if indexed and (not is_index(index) or read_card(index).corpus_sha256 != record.corpus_sha256):
        build_index(home / BEIR_CORPUS, index)
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


class _Update:
    """A corpus that is written, with the record of its files, from `old` ones and those that have changed."""

    def __init__(self, *, old: FolderRecord, corpus: Path, out: BinaryIO, names: Mapping[str, str]) -> None:
        self.documents: dict[str, DocumentRecord] = {}
        self.digest = hashlib.sha256()
        packages = sorted(name for name in {*NEEDS.values()} if find_spec(name) is not None)
        self.reader = f"{__version__}, {ROW.megabytes} MB, {', '.join((*packages, *names.values()))}"
        self._old, self._corpus, self._out, self._names = old, corpus, out, names
        self._places = _places_of(corpus, old)
        self._first: dict[str, str] = {}

    def add(self, file: Path, name: str, reason: str) -> None:
        """Adds a file, which is left out if there is a `reason`. One that is as it was is not read again."""
        if name not in self.documents:  # names may differ in what is escaped
            self.documents[name] = self._document(file, name, reason)

    def _document(self, file: Path, name: str, reason: str) -> DocumentRecord:
        old = self._old.documents.get(name)
        try:
            status = file.lstat()
            size, mtime = status.st_size, status.st_mtime_ns
            if not reason and size > ROW.bytes:
                reason = ROW.exceeded()
            if reason:
                return DocumentRecord(size=size, mtime=mtime, skipped=reason)
            same = old is not None and (old.size, old.mtime) == (size, mtime) and old.sha256
            found = DocumentRecord(size=size, mtime=mtime, sha256=same or _sha256(file))
        except OSError as error:
            return DocumentRecord(size=0, mtime=0, skipped=f"cannot be read: {error.strerror or error}")
        if (first := self._first.setdefault(found.sha256, name)) != name:
            return replace(found, skipped=f"the same as {first}", same_as=first)
        if old is not None and old.sha256 == found.sha256:
            if name in self._places and old.passages:
                return replace(found, passages=self._write(self._kept(name)))
            if old.skipped and not old.same_as and self._old.reader == self.reader:
                return replace(found, skipped=old.skipped)
        place, digest = self._out.tell(), self.digest.copy()
        try:
            count = self._write(_passages(file, name, self._names))
            return replace(found, passages=count, skipped="" if count else "has no text")
        except SleuthError as error:  # and nothing of it stays
            self._out.truncate(self._out.seek(place))
            self.digest = digest
            return replace(
                found,
                skipped=re.sub(
                    r"^:(\d+): |^: ",
                    lambda at: f"line {at[1]}: " if at[1] else "",
                    str(error.args[0]).removeprefix(str(file)),
                ),
            )

    def _write(self, passages: Iterable[Passage]) -> int:
        count = 0
        for one in passages:
            count += 1
            self.digest.update(hash_input(one))
            row = {"id": one.id, "contents": contents_of(one)}
            self._out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        return count

    def _kept(self, name: str) -> Iterator[Passage]:
        """The passages of a document in the old corpus."""
        start, end = self._places[name]
        with self._corpus.open("rb") as lines:
            lines.seek(start)
            while lines.tell() < end:
                yield passage_of(json.loads(lines.readline()), name)


def _places_of(corpus: Path, old: FolderRecord) -> dict[str, tuple[int, int]]:
    """The bytes of each document in the corpus, from and to; none if it is not that of the record."""
    places: dict[str, tuple[int, int]] = {}
    digest, start = hashlib.sha256(), 0
    try:
        with corpus.open("rb") as lines:
            for line in lines:
                passage = passage_of(json.loads(line), str(corpus))
                digest.update(hash_input(passage))
                if (place := place_of(passage.id)) is None:
                    return {}
                end = start + len(line)
                places[place[0]] = (places.get(place[0], (start,))[0], end)
                start = end
    except (OSError, ValueError, SleuthError):
        return {}
    return places if digest.hexdigest() == old.corpus_sha256 else {}


def _passages(file: Path, name: str, names: Mapping[str, str]) -> Iterator[Passage]:
    count = 0
    for where, found in document(file, names):
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
