"""Opens an index of any kind by its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sleuth.retrieval.bm25 import Bm25
from sleuth.retrieval.dense import Dense
from sleuth.retrieval.hybrid import Hybrid
from sleuth.retrieval.index_card import Index, how_to_make, read_card
from sleuth.retrieval.vectors import Device, cuda_devices
from sleuth.types import SleuthError

INDEXES: dict[str, Callable[[Path, Device], Index]] = {
    "bm25": lambda folder, device: Bm25(folder),
    "dense": Dense,
    "hybrid": Hybrid,
}


def open_index(folder: Path, device: Device = "cpu") -> Index:
    """Opens the index in a folder, with its flat vectors on `device`. Raises SleuthError if the folder has no index of
    this version, or on `"cuda"` no vectors for a card."""
    kind = read_card(folder).kind
    if kind not in INDEXES:
        known = ", ".join(INDEXES)
        raise SleuthError(f"{folder}: an index of kind {kind!r}; there are {known}; {how_to_make(folder)}")
    require_device(folder, device)
    return INDEXES[kind](folder, device)


def require_device(folder: Path, device: Device) -> None:
    """Raises SleuthError unless this machine has the device, and the index in `folder` vectors for it."""
    if device == "cpu":
        return
    card = read_card(folder)
    if card.kind == "bm25":
        raise SleuthError(f"{folder}: an index of kind {card.kind!r} has no vectors for a card; leave --device out")
    if card.storage not in {None, "flat"}:  # None: another tool's file, which `open_search` reads
        raise SleuthError(f"{folder}: vectors of {card.storage} are searched on the CPU; leave --device out")
    cuda_devices()
