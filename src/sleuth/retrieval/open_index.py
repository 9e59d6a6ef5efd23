"""Opens an index of any kind by its card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sleuth.retrieval.bm25 import Bm25
from sleuth.retrieval.dense import Dense
from sleuth.retrieval.hybrid import Hybrid
from sleuth.retrieval.index_card import IndexCard, how_to_make, read_card
from sleuth.retrieval.vectors import Device, cuda_devices
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
ON_CARDS: dict[str, Callable[[Path, Device], Index]] = {"dense": Dense, "hybrid": Hybrid}


def open_index(folder: Path, device: Device = "cpu") -> Index:
    """Opens the index in a folder, with its flat vectors on `device`. Raises SleuthError if the folder has no index of
    this version, or on `"cuda"` no vectors for a card."""
    kind = read_card(folder).kind
    if kind not in INDEXES:
        known = ", ".join(INDEXES)
        raise SleuthError(f"{folder}: an index of kind {kind!r}; there are {known}; {how_to_make(folder)}")
    if device == "cpu":
        return INDEXES[kind](folder)
    require_device(folder, device)
    return ON_CARDS[kind](folder, device)


def require_device(folder: Path, device: Device) -> None:
    """Raises SleuthError unless this machine has the device, and the index in `folder` vectors for it."""
    if device == "cpu":
        return
    card = read_card(folder)
    if card.kind not in ON_CARDS:
        raise SleuthError(f"{folder}: an index of kind {card.kind!r} has no vectors for a card; leave --device out")
    if card.storage not in {None, "flat"}:  # None: another tool's file, which `open_search` reads
        raise SleuthError(f"{folder}: vectors of {card.storage} are searched on the CPU; leave --device out")
    cuda_devices()
