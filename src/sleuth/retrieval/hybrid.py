"""Hybrid retrieval: BM25 and a dense index, fused by the mean of their normalised scores.

The scores of each list are scaled to 0 to 1 (min-max); a passage missing from a list scores 0 there. This is the convex
combination of Bruch, Gai and Ingber, "An analysis of fusion functions for hybrid retrieval" (arXiv:2210.11934), with
equal weights. On 3,561 questions it finds more than reciprocal rank fusion with its published constant 60 (recall@3
0.958 and 0.947; recall@1 0.839 and 0.807), which ignores score margins. The folder has both indexes, each of which can
be opened by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sleuth.retrieval import bm25, dense
from sleuth.retrieval.bm25 import Bm25, Bm25Writer
from sleuth.retrieval.costs import Storage
from sleuth.retrieval.dense import Dense, DenseWriter, dense_plan
from sleuth.retrieval.index_card import EncoderCard, Index, IndexCard, require_card, write_card
from sleuth.retrieval.vectors import Device, load_faiss
from sleuth.retrieval.writing import Progress, write_index
from sleuth.types import Passage, SleuthError

LAYOUT = 1
DEPTH = 30  # minimum results per index to fuse; 20 and 50 find as much on the 3,561 questions

FUSION = f"mean of min-max scores, {DEPTH} of each"


def build_hybrid(
    corpus: Path, folder: Path, encoder: EncoderCard, storage: Storage = "flat", progress: Progress = lambda count: None
) -> IndexCard:
    """Builds both indexes of a corpus in one pass. See `write_index`."""
    load_faiss()
    plan = dense_plan(encoder, storage) | {"kind": "hybrid", "layout": [LAYOUT, bm25.LAYOUT, dense.LAYOUT], "writer": 1}
    return write_index(corpus, folder, plan, partial(HybridWriter, encoder, storage), progress)


def fuse(lists: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """The best k of several ranked lists; `score` is the mean of the normalised scores, ties are broken by id."""
    scores: defaultdict[str, float] = defaultdict(float)
    passages: dict[str, Passage] = {}
    for ranked in lists:
        for passage, score in zip(ranked, _normalised(ranked), strict=True):
            scores[passage.id] += score / len(lists)
            passages[passage.id] = passage
    best = sorted(passages, key=lambda passage_id: (-scores[passage_id], passage_id))[: max(k, 0)]
    return [replace(passages[passage_id], score=scores[passage_id]) for passage_id in best]


def _normalised(ranked: Sequence[Passage]) -> list[float]:
    """The scores of a list scaled from 1 for its best to 0 for its last; all 1 if they are equal."""
    if not ranked or ranked[0].score == ranked[-1].score:
        return [1.0 for _ in ranked]
    best, last = ranked[0].score, ranked[-1].score
    return [(passage.score - last) / (best - last) for passage in ranked]


class Hybrid(Index):
    """Over both indexes of a folder."""

    batch = dense.QUERY_BATCH

    def __init__(self, folder: Path, device: Device = "cpu") -> None:
        """Opens `folder`, with flat vectors on `device`. Raises SleuthError if it has no hybrid index."""
        self.card = require_card(folder, "hybrid", LAYOUT)
        self._words, self._vectors = Bm25(folder / "bm25"), Dense(folder / "dense", device)
        if self._words.card.corpus_sha256 != self._vectors.card.corpus_sha256:
            raise SleuthError(f"{folder}: its two indexes were made from different corpora; make it again")
        self.card = _with_parts(self.card, self._words.card, self._vectors.card)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return self._fuse(queries, await self._vectors.search(queries, max(k, DEPTH)), k)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return self._fuse(queries, self._vectors.find(queries, max(k, DEPTH)), k)

    def passage(self, passage_id: str) -> Passage | None:
        return self._words.passage(passage_id)

    def _fuse(self, queries: Sequence[str], dense_lists: Sequence[Sequence[Passage]], k: int) -> list[list[Passage]]:
        bm25_lists = self._words.find(queries, max(k, DEPTH))
        return [fuse(pair, k) for pair in zip(bm25_lists, dense_lists, strict=True)]


class HybridWriter:
    """Feeds both writers, each from where it stopped."""

    def __init__(self, encoder: EncoderCard, storage: Storage, folder: Path) -> None:
        self._folder = folder
        self._parts = {
            "bm25": Bm25Writer(folder / "bm25"),
            "dense": DenseWriter(encoder, storage, folder / "dense"),
        }
        self.every = min(part.every for part in self._parts.values())

    @property
    def done(self) -> int:
        return min(part.done for part in self._parts.values())

    def add(self, passages: list[Passage]) -> None:
        done = self.done
        for part in self._parts.values():
            part.add(passages[max(0, part.done - done) :])

    def checkpoint(self) -> None:
        for part in self._parts.values():
            if part.done % part.every == 0:
                part.checkpoint()

    def finish(self, corpus_sha256: str) -> IndexCard:
        cards = {name: part.finish(corpus_sha256) for name, part in self._parts.items()}
        for name, card in cards.items():
            write_card(card, self._folder / name)
        card = IndexCard(
            kind="hybrid",
            count=self.done,
            corpus_sha256=corpus_sha256,
            layout=LAYOUT,
            library=", ".join(card.library for card in cards.values()),
            flat_recall=cards["dense"].flat_recall,
        )
        return _with_parts(card, cards["bm25"], cards["dense"])


def _with_parts(card: IndexCard, words: IndexCard, vectors: IndexCard) -> IndexCard:
    """The card of a hybrid index with what decides how its two parts search."""
    settings = {key: getattr(vectors, key) for key in ("encoder", "storage", "lists", "probes")}
    return replace(card, k1=words.k1, b=words.b, fusion=FUSION, **settings)
