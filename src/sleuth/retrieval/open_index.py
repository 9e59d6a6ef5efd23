"""Opens an index of any kind by its card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sleuth.retrieval.bm25 import Bm25
from sleuth.retrieval.dense import Dense
from sleuth.retrieval.hybrid import Hybrid
from sleuth.retrieval.index_card import HOW_TO_MAKE, IndexCard, read_card
from sleuth.types import Passage, Retriever, SleuthError


class Index(Retriever, Protocol):
    """A thread-safe `Retriever` on this machine. `batch` is its preferred number of queries per call."""

    card: IndexCard
    batch: int

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """`search` for callers without an event loop; any number of threads may call it."""
        ...

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, with the score 0; None if there is none. Any number of threads may call it."""
        ...


INDEXES: dict[str, Callable[[Path], Index]] = {"bm25": Bm25, "dense": Dense, "hybrid": Hybrid}


def open_index(folder: Path) -> Index:
    """The index in a folder. Raises SleuthError if there is none that this version can open."""
    kind = read_card(folder).kind
    if kind not in INDEXES:
        known = ", ".join(INDEXES)
        raise SleuthError(
            f"{folder}: an index of kind {kind!r}; there are {known}; {HOW_TO_MAKE.format(folder=folder)}"
        )
    return INDEXES[kind](folder)
