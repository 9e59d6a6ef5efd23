"""Opens an index in a thread, so that the server can already report its progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

from sleuth.retrieval.index_card import read_card
from sleuth.retrieval.open_index import Index, open_index, require_device
from sleuth.retrieval.scanning import Device

BLOCK = 8 * 2**20  # bytes


class IndexLoader:
    """Reads the files of an index once, so that the first queries do not wait for the disk, then opens it, in a thread.

    `index` is None until then; `progress` goes from 0 to 1; `error` says why it could not be opened.
    """

    def __init__(self, folder: Path, device: Device = "cpu") -> None:
        """Raises SleuthError if `folder` has no index, or none for this device."""
        self.card = read_card(folder)
        require_device(folder, device)
        self.index: Index | None = None
        self.progress = 0.0
        self.error = ""
        self._folder = folder
        self._device: Device = device

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Starts the thread, a daemon, and calls `failed` if the index cannot be opened."""
        Thread(target=self._open, args=(failed,), name="opening", daemon=True).start()

    def _open(self, failed: Callable[[], None]) -> None:
        try:
            files = list(_files(self._folder))
            total = min(sum(file.stat().st_size for file in files), _memory() // 2) or 1
            read = 0
            for file in files:
                for size in _blocks(file):
                    read += size
                    self.progress = min(0.99, read / total)
                    if read >= total:  # more would evict what was read first
                        break
            index = open_index(self._folder, self._device)
            index.find(["warm up"], 1)
            self.index, self.progress = index, 1.0
        except Exception as error:  # of any kind: clients wait for the outcome
            self.error = " ".join(str(error).split()) or type(error).__name__
            failed()


def _files(folder: Path) -> Iterator[Path]:
    """The files of an index and its inner indexes, and the outside files that their cards name."""
    for path in sorted(folder.rglob("*")):
        if path.name == "card.json":
            card = read_card(path.parent)
            yield from (Path(name) for name in (card.vectors, card.passages) if name and Path(name).is_file())
        if path.is_file():
            yield path


def _blocks(file: Path) -> Iterator[int]:
    with file.open("rb") as content:
        while size := len(content.read(BLOCK)):
            yield size


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
