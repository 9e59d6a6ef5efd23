"""An index on this machine, its card, `card.json` in its folder, and whether its files are those that were built."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sleuth.data.catalogue import command_for, entry_at
from sleuth.host.checksums import SUMS, damage, has_checksums, lists, write_checksums
from sleuth.host.model_path import model_name
from sleuth.host.threads import to_stderr
from sleuth.recipe.shipped import WORLD
from sleuth.retrieval.corpus import PassageFile
from sleuth.retrieval.costs import RATES, TOGETHER, WIDTH, search_seconds
from sleuth.types import UNKNOWN_RETRIEVER, Passage, Retriever, RetrieverIdentity, SleuthError

FILE_NAME = "card.json"
OLD = ".old"  # after the name of an index that is being replaced
HASHED_AT_OPENING = 128 * 2**20
"""Bytes whose checksums are compared whenever an index is opened, small files first, in a fraction of a second. Of the
rest only the sizes are; `sleuth check index` reads all."""
LOCKS = ".lock"
MAX_LISTED = 2**24
"""Bytes of a card and of a list of checksums that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCard:
    """The sentence encoder of the vectors and its settings; queries must be encoded the same way.

    `EncoderCard(model="intfloat/e5-base-v2", query_prefix="query: ", passage_prefix="passage: ", width=768)`.
    `model` is a folder or a hub id. `pooling` None is the model's own; `width` is the length of a vector.
    `weights_sha256` is that of its file of weights. Cards of earlier versions lack it.
    """

    model: str
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: str | None = None
    width: int
    weights_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCard:
    """What was indexed and how.

    `IndexCard(kind="bm25", count=19258, corpus_sha256="8c1f...", k1=1.2, b=0.75, layout=1, library="tantivy 0.27.0")`.
    `layout` is the version of the files and text analysis; other versions are refused. `k1` and `b` are BM25's.
    `encoder`, `vectors` (a faiss file) and `passages` (a .jsonl corpus) are those of a dense index; the two paths are
    relative to the folder of the index unless absolute. `corpus_bytes` is the size of a corpus that lies elsewhere and
    must not change. `storage` is how vectors are kept: `flat`, `ivf-sq8`, `ivf-pq`, or faiss' name of another type;
    a query searches `probes` of its `lists`. `fusion` is how a hybrid index ranks.
    `files` has the size in bytes of each file, by its path from the folder; indexes of earlier versions have none. File
    names are drawn, so cards of two builds that differ only there are equal.
    `flat_recall` of quantised ones, measured when they were built, is the share of the ten nearest passages by exact
    search, of 200 passages, that are found too: `{"value": 0.97, "low": 0.96, "high": 0.98, "n": 200}`.
    """

    kind: str
    count: int
    corpus_sha256: str
    layout: int
    library: str
    k1: float | None = None
    b: float | None = None
    encoder: EncoderCard | None = None
    vectors: str | None = None
    passages: str | None = None
    corpus_bytes: int | None = None
    storage: str | None = None
    lists: int | None = None
    probes: int | None = None
    fusion: str | None = None
    flat_recall: dict[str, float] | None = None
    files: dict[str, int] | None = field(default=None, compare=False)

    def as_json(self) -> dict[str, object]:
        """The fields that are not None, but for `files`: they matter to this folder alone."""
        return {key: value for key, value in asdict(self).items() if value is not None and key != "files"}

    @property
    def scan_seconds(self) -> float | None:
        """Seconds of one thread for a query among `TOGETHER`, without encoding it; None for a storage that was not
        measured."""
        width = self.encoder.width if self.encoder is not None else WIDTH
        parts = [
            *(["bm25"] if self.kind != "dense" else []),
            *([self.storage or "flat"] if self.kind != "bm25" else []),
        ]
        if not {*parts} <= RATES.keys():
            return None
        return sum(search_seconds(part, self.count, width=width, together=TOGETHER) for part in parts)

    @property
    def retriever(self) -> RetrieverIdentity:
        """The identity of its retriever, as far as the card knows it; that of an opened index is complete."""
        return identity_of(self.as_json())


_IDENTITY = TypeAdapter(RetrieverIdentity)
_CARD = TypeAdapter(IndexCard)


def identity_of(card: Mapping[str, Any]) -> RetrieverIdentity:
    """The identity of the retriever of a card as JSON, also if a server of another version or make reports it."""
    encoder = card.get("encoder")
    encoder = encoder if isinstance(encoder, Mapping) else {}
    known = {key: card.get(key) for key in ("kind", "k1", "b", "storage", "lists", "probes", "fusion")}
    known |= {key: encoder.get(key) for key in ("weights_sha256", "query_prefix", "passage_prefix", "pooling")}
    try:
        return _IDENTITY.validate_python(known | {"encoder": model_name(str(encoder["model"])) if encoder else None})
    except (ValidationError, KeyError):
        return UNKNOWN_RETRIEVER


def how_to_make(folder: Path) -> str:
    """The end of an error about an index: where one is, or the command that writes one."""
    if folder.is_file():
        return f"that is a file; make one of it with `sleuth index {quote(str(folder))} INDEX`"
    if is_index(folder / "index"):
        return f"there is one in {folder / 'index'}"
    beside = folder.with_name("corpus.jsonl")  # as `sleuth world` and `sleuth init` write them
    corpus = quote(str(beside)) if beside.is_file() or folder.parent == WORLD else "CORPUS"
    return f"make one with `{command_for(folder) or f'sleuth index {corpus} {quote(str(folder))}'}`"


def write_card(card: IndexCard, folder: Path) -> None:
    """Writes the card into the folder of its index."""
    files = {} if card.files is None else {"files": card.files}
    (folder / FILE_NAME).write_text(json.dumps(card.as_json() | files, indent=2) + "\n")


def read_card(folder: Path) -> IndexCard:
    """The card of an index. Raises SleuthError, with the command that makes an index, if there is none."""
    how = how_to_make(folder)
    if problem := _not_a_file(folder / FILE_NAME):
        raise damaged_index(folder, problem)
    try:
        with (folder / FILE_NAME).open("rb") as file:
            text = file.read(MAX_LISTED)
    except (FileNotFoundError, NotADirectoryError):
        if is_index(old := folder.absolute().with_name(folder.absolute().name + OLD)):
            raise SleuthError(f"{folder}: a killed build left its index as {old}; rename that to {folder}") from None
        raise SleuthError(f"{folder}: no index here; {how}") from None
    try:
        fields = json.loads(text)
        encoder = EncoderCard(**fields["encoder"]) if "encoder" in fields else None
        IndexCard(**(fields | {"encoder": encoder}))  # which refuses other fields
        return _CARD.validate_python(fields)
    except (ValueError, TypeError, RecursionError):
        raise SleuthError(f"{folder / FILE_NAME}: not the card of an index that this version knows; {how}") from None


def expected_card(folder: Path) -> IndexCard | None:
    """The card of an index, or of the one that `sleuth get` will write there, as far as its kind decides it; None where
    there is none and nothing is known."""
    if is_index(folder):
        return read_card(folder)
    if (found := entry_at(folder)) is None:
        return None
    entry, kind = found
    vectors = {"encoder": EncoderCard(model=entry.encoder, width=entry.width), "storage": "flat"}
    settings = vectors if kind == "dense" else {}
    return IndexCard(kind=kind, count=entry.passages, corpus_sha256="", layout=0, library="", **settings)


def require_card(folder: Path, kind: str, layout: int) -> IndexCard:
    """The card of an index of this kind and layout. Raises SleuthError for any other, and for one whose files are not
    those that were built; see `index_damage`."""
    card = read_card(folder)
    if (card.kind, card.layout) != (kind, layout):
        actual = f"{card.kind} index of layout {card.layout}"
        raise SleuthError(f"{folder}: a {actual}, expected {kind} of layout {layout}; {how_to_make(folder)}")
    if (problem := index_damage(folder, card)) is not None:
        raise damaged_index(folder, problem)
    return card


def write_index_card(card: IndexCard, folder: Path, *, but: Collection[str]) -> IndexCard:
    """Writes the card with the sizes of all files in the folder except those named in `but`, and their checksums."""
    found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    skipped = {name for name in found if name.endswith(LOCKS)} | {*but}
    names = sorted(found.keys() - skipped - {FILE_NAME, SUMS})
    elsewhere = [card.vectors] if card.vectors is not None and card.vectors not in names else []  # adopted
    card = replace(card, files={name: (folder / name).stat().st_size for name in (*names, *elsewhere)})
    write_card(card, folder)
    write_checksums(folder, but=skipped)
    return card


def index_damage(folder: Path, card: IndexCard, *, whole: bool = False) -> str | None:
    """What is wrong with the files of an index, in words, or None. Compares all sizes, and the checksums of
    `HASHED_AT_OPENING` bytes, or of the `whole`. None for an index of an earlier version, which has neither."""
    if problem := next(filter(None, map(_not_a_file, (folder, *folder.iterdir()))), None):
        return problem
    sizes = card.files or {}
    for name, size in sizes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (now := (folder / name).stat().st_size) != size:
            return f"{name} has {now:,} bytes, and had {size:,} when it was built"
    if not has_checksums(folder):
        if sizes:
            to_stderr(f"{folder}: has no {SUMS}, so changes that keep the sizes of its files are not noticed")
        return None
    if (folder / SUMS).stat().st_size > MAX_LISTED:
        return f"{SUMS} has more than {MAX_LISTED:,} bytes"
    smallest = sorted(sizes, key=lambda name: sizes[name])
    read = accumulate(sizes[name] for name in smallest)
    left_out = {name for name, until in zip(smallest, read, strict=True) if until > HASHED_AT_OPENING and not whole}
    known = {FILE_NAME, *sizes}
    problem = damage(folder, lambda name: name not in left_out and (name in known or not sizes))
    unlisted = [name for name in known if not Path(name).is_absolute() and not lists(folder, name)] if sizes else []
    if problem is None and unlisted:
        problem = f"{min(unlisted)} is not listed"
    return None if problem is None else f"{problem}, by its {SUMS}; if the change is meant, remove that file"


def _not_a_file(path: Path) -> str | None:
    """The words for a pipe, a device, or a link to nothing or to one of those: opening it might wait for ever."""
    there = path.is_symlink() or path.exists()
    return f"{path.name} is not an ordinary file" if there and not path.is_file() and not path.is_dir() else None


def damaged_index(folder: Path, problem: object) -> SleuthError:
    """The error of an index that cannot be used because of `problem`."""
    return SleuthError(f"{folder}: damaged index ({problem}); {how_to_make(folder)}")


def is_index(folder: Path) -> bool:
    """Whether the folder has an index, of any layout."""
    return (folder / FILE_NAME).is_file()


class Index(Retriever):
    """A thread-safe `Retriever` on this machine. `batch` is its preferred number of queries per call."""

    card: IndexCard
    batch = 1
    _passages: PassageFile

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, best first; ties broken by id."""
        return self.find(queries, k)

    @abstractmethod
    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """`search` for callers without an event loop; any number of threads may call it."""

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, with the score 0; None if there is none. Any number of threads may call it."""
        row = self._passages.row_of(passage_id)
        return None if row is None else self._passages.passage(row)
