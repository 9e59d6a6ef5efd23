"""Dense retrieval by inner product, with flat or quantised vectors of any encoder.

The files of an index: `vectors.faiss`, `passages.jsonl` (a valid corpus) and `passages.offsets`. An index made
elsewhere, such as Search-R1's flat E5 index of wiki-18, is opened in place: the card then names its file and corpus.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from threading import Lock

from sleuth.retrieval.corpus import OFFSETS, PASSAGES, PassageFile, PassageFileWriter, find_rows, read_corpus
from sleuth.retrieval.costs import Storage
from sleuth.retrieval.encoder import Encoder
from sleuth.retrieval.index_card import EncoderCard, Index, IndexCard, damaged_index, how_to_make, require_card
from sleuth.retrieval.quantising import quantise, recall_against_flat
from sleuth.retrieval.query_batcher import QueryBatcher
from sleuth.retrieval.vectors import (
    Device,
    FlatWriter,
    load_faiss,
    open_search,
    open_vectors,
    vector_settings,
)
from sleuth.retrieval.writing import Progress, write_index
from sleuth.types import Passage, SleuthError

LAYOUT = 1  # increment whenever the files or the encoded text change
VECTORS, FLAT_ROWS, DONE = "vectors.faiss", "flat.faiss", "done"
CHECKPOINT_EVERY = 1000  # passages that a kill can lose; encoding them takes from a second to a minute
COMPARED = 8  # passages that are encoded to see whether existing vectors are of the same model
COMPARED_ROWS = 1024
QUERY_BATCH = 128  # queries of one scan at most


def build_dense(
    corpus: Path, folder: Path, encoder: EncoderCard, storage: Storage = "flat", progress: Progress = lambda count: None
) -> IndexCard:
    """Encodes a corpus into `folder`, calling `progress` with the number of passages so far. See `write_index`."""
    load_faiss()  # fails before hours of encoding, not after
    return write_index(corpus, folder, dense_plan(encoder, storage), partial(DenseWriter, encoder, storage), progress)


def dense_plan(encoder: EncoderCard, storage: Storage) -> dict[str, object]:
    """The plan of a dense index; see `write_index`."""
    return {"kind": "dense", "layout": LAYOUT, "encoder": asdict(encoder), "vectors": storage}


def adopt_vectors(
    corpus: Path, folder: Path, encoder: EncoderCard, vectors: Path, progress: Progress = lambda count: None
) -> IndexCard:
    """Makes an index of an existing faiss file whose rows are those of `corpus`. Neither is copied, but for a corpus
    that is not .jsonl. Raises SleuthError if the numbers of rows or the widths of vectors differ."""
    index = open_vectors(vectors)
    if index.d != encoder.width:
        raise SleuthError(f"{vectors}: vectors of {index.d} numbers, and {encoder.model} makes {encoder.width}")
    require_same_model(encoder, vectors, list(islice(read_corpus(corpus), COMPARED)))
    plan = {"kind": "dense", "vectors": str(vectors.resolve()), "encoder": asdict(encoder)}
    open_writer = partial(_AdoptedWriter, corpus, vectors, index.ntotal, encoder)
    return write_index(corpus, folder, plan, open_writer, progress)


def require_same_model(encoder: EncoderCard, vectors: Path, first: Sequence[Passage]) -> None:
    """Raises SleuthError unless most of the first passages of a corpus are nearest to their own rows of a faiss file,
    among its first `COMPARED_ROWS`; in a quantised one it is enough to be among so many nearest."""
    made, search = Encoder(encoder).passages(first), open_search(vectors)
    if made.shape[1] != search.width:
        raise SleuthError(f"{vectors}: vectors of {search.width} numbers, and {encoder.model} makes {made.shape[1]}")
    if search.rows is not None:
        near = [{row} for row in (made @ search.rows[:COMPARED_ROWS].T).argmax(axis=1).tolist()]
    else:
        near = [{row for row, _ in hits} for hits in search.search(made, COMPARED_ROWS)]
    own = sum(row in rows for row, rows in enumerate(near))
    if 2 * own < len(first):
        raise SleuthError(
            f"{vectors}: of the first {len(first)} passages, encoded by {encoder.model}, {own} are nearest to their "
            "own vectors: these were made by another model, with other prefixes, or of another corpus"
        )


class Dense(Index):
    """Over a dense index. Each query is encoded once; equal scores are ordered by id.

    Encoding and searching run in a thread, one batch at a time; queries that arrive meanwhile go together into the next
    one. `search` may be called from any event loop.
    """

    batch = QUERY_BATCH

    def __init__(self, folder: Path, device: Device = "cpu") -> None:
        """Opens `folder`, with flat vectors on `device`. Raises SleuthError if it has no dense index or a file that its
        card names is missing."""
        self.card = require_card(folder, "dense", LAYOUT)
        if self.card.encoder is None or self.card.vectors is None or self.card.passages is None:
            raise SleuthError(f"{folder}: the card names no encoder; {how_to_make(folder)}")
        corpus, size = folder / self.card.passages, self.card.corpus_bytes
        if size is not None and corpus.is_file() and (now := corpus.stat().st_size) != size:
            raise SleuthError(
                f"{corpus}: {now:,} bytes, and {size:,} when {folder} was made: the corpus changed behind its index; "
                "restore it, or make the index again"
            )
        self._vectors = open_search(folder / self.card.vectors, device)
        self._passages = PassageFile(corpus, folder / OFFSETS)
        if not self._vectors.count == len(self._passages) == self.card.count:
            counts = f"{self._vectors.count:,} vectors, {len(self._passages):,} passages"
            raise damaged_index(folder, f"{counts}, {self.card.count:,} on the card")
        self._encoder = Encoder(self.card.encoder)
        self.card = replace(self.card, encoder=self._encoder.card, **self._vectors.settings)
        self._lock = Lock()
        self._batcher = QueryBatcher(partial(asyncio.to_thread, self.find), QUERY_BATCH)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await self._batcher.search(queries, k)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        k = min(k, self.card.count)
        if k < 1 or not queries:
            return [[] for _ in queries]
        with self._lock:
            found = self._vectors.search(self._encoder.queries(queries), k)
        passages = ([self._passages.passage(row, score) for row, score in hits] for hits in found)
        return [sorted(hits, key=lambda passage: (-passage.score, passage.id))[:k] for hits in passages]


class DenseWriter:
    """Writes a dense index into a folder, with one batch of passages in memory; quantising holds its whole result."""

    every = CHECKPOINT_EVERY

    def __init__(self, encoder: EncoderCard, storage: Storage, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._storage: Storage = storage
        self._flat = folder / (VECTORS if storage == "flat" else FLAT_ROWS)
        self.done = int((folder / DONE).read_text()) if (folder / DONE).exists() else 0
        self._encoder = Encoder(encoder)
        self._vectors = FlatWriter(self._flat, encoder.width, self.done)
        self._passages = PassageFileWriter(folder / PASSAGES, folder / OFFSETS, self.done)

    def add(self, passages: list[Passage]) -> None:
        self._vectors.append(self._encoder.passages(passages))
        self._passages.append(passages)
        self.done += len(passages)

    def checkpoint(self) -> None:
        self._vectors.flush()
        self._passages.flush()
        (self._folder / "done.new").write_text(str(self.done))
        os.replace(self._folder / "done.new", self._folder / DONE)

    def finish(self, corpus_sha256: str) -> IndexCard:
        self._vectors.close()
        self._passages.close()
        recall = None
        if self._storage != "flat":
            quantise(self._flat, self._folder / VECTORS, self._storage)
            recall = recall_against_flat(self._flat, self._folder / VECTORS)
        (self._folder / DONE).unlink(missing_ok=True)  # before deleting the rows that it counts
        if self._storage != "flat":
            self._flat.unlink()
        card = _card(self.done, corpus_sha256, self._encoder.card, self._folder / VECTORS, PASSAGES)
        return replace(card, vectors=VECTORS, flat_recall=recall)


class _AdoptedWriter:
    """The `IndexWriter` of existing vectors: it counts the corpus, and copies one that is not .jsonl."""

    every = 10**9

    def __init__(self, corpus: Path, vectors: Path, rows: int, encoder: EncoderCard, folder: Path) -> None:
        self.done = 0
        self._corpus, self._vectors, self._rows, self._encoder = corpus.resolve(), vectors.resolve(), rows, encoder
        self._offsets = folder / OFFSETS
        self._copy = None if corpus.suffix == ".jsonl" else PassageFileWriter(folder / PASSAGES, self._offsets)

    def add(self, passages: list[Passage]) -> None:
        if self._copy is not None:
            self._copy.append(passages)
        self.done += len(passages)

    def checkpoint(self) -> None:
        """No-op: there is no work to lose."""

    def finish(self, corpus_sha256: str) -> IndexCard:
        if self.done != self._rows:
            raise SleuthError(
                f"{self._vectors}: {self._rows:,} vectors, and {self._corpus} has {self.done:,} passages; "
                "an index needs the corpus that it was made from"
            )
        if self._copy is not None:
            self._copy.close()
            return _card(self.done, corpus_sha256, self._encoder, self._vectors, PASSAGES)
        find_rows(self._corpus, self._offsets)
        card = _card(self.done, corpus_sha256, self._encoder, self._vectors, str(self._corpus))
        return replace(card, corpus_bytes=self._corpus.stat().st_size)


def _card(count: int, corpus_sha256: str, encoder: EncoderCard, vectors: Path, passages: str) -> IndexCard:
    return IndexCard(
        kind="dense",
        count=count,
        corpus_sha256=corpus_sha256,
        layout=LAYOUT,
        library=f"faiss {version('faiss-cpu')}, sentence-transformers {version('sentence-transformers')}",
        encoder=encoder,
        vectors=str(vectors),
        passages=passages,
        **vector_settings(open_vectors(vectors)),
    )
