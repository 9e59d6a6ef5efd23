"""Adds passages to an index and removes some, without encoding or training what it keeps.

The next index is written beside the old one and takes its place when it is complete, so that a kill leaves the old one
whole; the same command continues. It answers as one that is built of the changed corpus, and has that corpus' hash; but
quantised vectors keep the lists that they were trained with. Words of kept passages are indexed again only if some are
removed, because tantivy goes on counting words of removed passages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from sleuth.host.disk import bytes_in, free_bytes, shown
from sleuth.retrieval import bm25, dense, hybrid
from sleuth.retrieval.bm25 import Bm25Writer
from sleuth.retrieval.corpus import OFFSETS, PASSAGES, PassageFile, read_corpus
from sleuth.retrieval.costs import Storage
from sleuth.retrieval.dense import COMPARED, VECTORS, DenseWriter, KeptVectors, require_same_model
from sleuth.retrieval.hybrid import HybridWriter
from sleuth.retrieval.index_card import IndexCard, read_card, require_card
from sleuth.retrieval.writing import IndexWriter, Progress, restore, write_index
from sleuth.types import Passage, SleuthError

LAYOUTS = {"bm25": bm25.LAYOUT, "dense": dense.LAYOUT, "hybrid": hybrid.LAYOUT}


def add_passages(folder: Path, corpus: Path, progress: Progress = lambda count: None) -> IndexCard:
    """Adds the passages of a corpus after those of an index. Raises SleuthError, with nothing changed, for a malformed
    corpus, an id that the index has, and an encoder that does not make the vectors that are there."""
    index = _open(folder)
    for passage in read_corpus(corpus):
        if index.passages.row_of(passage.id) is not None:
            raise SleuthError(
                f"{corpus}: id {passage.id!r} is in {folder} already; remove that passage first, or leave this one out"
            )
    if index.vectors is not None and index.card.encoder is not None:
        first = [index.passages.passage(row) for row in range(min(COMPARED, len(index.passages)))]
        require_same_model(index.card.encoder, index.vectors, first)
    return _write(index, np.arange(len(index.passages)), corpus, progress)


def remove_passages(folder: Path, ids: Collection[str], progress: Progress = lambda count: None) -> IndexCard:
    """Removes the passages with these ids from an index. Raises SleuthError, with nothing changed, for an id that it
    does not have, and if none would be left."""
    index = _open(folder)
    rows = {name: index.passages.row_of(name) for name in ids}
    missing = [name for name, row in rows.items() if row is None]
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise SleuthError(f"{folder}: no passage with the id {missing[0]!r}{more}; nothing was removed")
    if len(rows) == len(index.passages):
        raise SleuthError(f"{folder}: no passage would be left; remove the folder instead")
    removed = np.array(sorted(row for row in rows.values() if row is not None), dtype=np.int64)
    return _write(index, np.delete(np.arange(len(index.passages)), removed), None, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """An index on disk. `vectors` is its faiss file, None of a BM25 index; `words` is the folder of its BM25 index."""

    folder: Path
    card: IndexCard
    passages: PassageFile
    vectors: Path | None
    words: Path | None


def _open(folder: Path) -> _Index:
    restore(folder.resolve())
    card = require_card(folder, kind := read_card(folder).kind, LAYOUTS.get(kind, 0))
    parts = {
        name: folder / name if kind == "hybrid" else folder for name in ("bm25", "dense") if kind in (name, "hybrid")
    }
    if kind == "dense" and card.passages != PASSAGES:
        raise SleuthError(
            f"{folder}: its vectors and passages are files of another tool ({card.vectors}), which are not changed; "
            "change those and make the index again, or make one with --encoder"
        )
    first = next(iter(parts.values()))
    return _Index(
        folder=folder,
        card=card,
        passages=PassageFile(first / PASSAGES, first / OFFSETS),
        vectors=parts["dense"] / VECTORS if "dense" in parts else None,
        words=parts.get("bm25"),
    )


def _write(index: _Index, rows: np.ndarray, added: Path | None, progress: Progress) -> IndexCard:
    """Writes the index of these rows and of the added corpus, and puts it in place of the old one."""
    folder = index.folder
    needed = bytes_in(folder) + (added.stat().st_size if added is not None and added.is_file() else 0)
    if needed > (free := free_bytes(folder)):
        raise SleuthError(
            f"{folder}: not enough disk: the changed index is written beside it and needs {shown(needed)}, and "
            f"{shown(free)} are free"
        )

    def passages(corpus: Path) -> Iterator[Passage]:
        for row in rows.tolist():
            yield index.passages.passage(row)
        if added is not None:
            yield from read_corpus(corpus)

    change = "adding" if added is not None else "removing"
    plan = {"kind": index.card.kind, "layout": index.card.layout, change: index.card.corpus_sha256}
    return write_index(added or folder, folder, plan, _writer(index, rows), progress, passages)


def _writer(index: _Index, rows: np.ndarray) -> Callable[[Path], IndexWriter]:
    card = index.card
    base = index.words if len(rows) == len(index.passages) else None  # words of removed passages would go on counting
    if index.vectors is None or card.encoder is None:
        return partial(Bm25Writer, base=base)
    storage = cast(Storage, card.storage or "flat")
    kept = KeptVectors(vectors=index.vectors.resolve(), rows=rows)
    if card.kind == "dense":
        return partial(DenseWriter, card.encoder, storage, kept=kept)
    return partial(HybridWriter, card.encoder, storage, base=base, kept=kept)
