"""The pages of the KV cache: which page holds which tokens of a slot, and which pages are free (arXiv:2309.06180)."""

from __future__ import annotations

import numpy as np

PAGE = 64
"""Tokens of a page. The keys of a page fit into a processor's innermost cache with their values, and are a block of a
card's kernel."""


class PageTable:
    """The pages of every slot: token p of a slot is in page `pages[slot, p // page_size]`, at `p % page_size`.

    Slots share the pages of a common prefix by reference. A page that several slots hold is copied before one of them
    writes to it; `take_copies` lists the copies that are due.
    """

    def __init__(self, *, slots: int, context: int, page_size: int, total: int) -> None:
        self.page_size = page_size
        self.total = total
        self.pages = np.zeros((slots, -(-context // page_size)), dtype=np.int32)
        self.held = np.zeros(slots, dtype=np.int64)  # pages of each slot
        self._holders = np.zeros(total, dtype=np.int64)  # slots of each page
        self._free = list(range(total - 1, -1, -1))  # the page that was freed last is taken first
        self._copies: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """The number of pages that no slot holds."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """The number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def held_by(self, slots: np.ndarray) -> int:
        """The number of pages that the slots of a mask (slots) hold together."""
        held = np.arange(self.pages.shape[1]) < self.held[slots, None]
        return len(np.unique(self.pages[slots][held]))

    def share(self, source: int, slot: int, tokens: int) -> None:
        """Makes `slot` hold just the pages of the first `tokens` tokens of `source`, which may be the slot itself."""
        count = self.needed(tokens)
        kept = self.pages[source, :count].copy()
        self._holders[kept] += 1
        self.drop(slot)
        self.pages[slot, :count] = kept
        self.held[slot] = count

    def drop(self, slot: int) -> None:
        """Takes all pages from `slot`; those that no other slot holds are free."""
        for page in self.pages[slot, : self.held[slot]][::-1].tolist():
            self._release(page)
        self.held[slot] = 0

    def clear(self) -> None:
        """Takes all pages from all slots, and forgets copies that are due."""
        self.held.fill(0)
        self._holders.fill(0)
        self._free = list(range(self.total - 1, -1, -1))
        self._copies.clear()

    def extend(self, slot: int, tokens: int) -> None:
        """Takes free pages until `slot` has room for `tokens` tokens. There must be enough."""
        for at in range(int(self.held[slot]), self.needed(tokens)):
            self.pages[slot, at] = self._take()
            self.held[slot] = at + 1

    def not_writable(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The indices of the pairs whose slot needs a free page before it writes at its position: it has no page there,
        or shares it."""
        at = positions // self.page_size
        missing = at >= self.held[slots]
        return np.flatnonzero(missing | (self._holders[self.pages[slots, at]] > 1))

    def make_writable(self, slot: int, position: int) -> None:
        """Takes a free page for `position` of `slot`, a copy if the slot shares the one that it has there."""
        at = position // self.page_size
        if at >= self.held[slot]:
            self.extend(slot, position + 1)
        elif self._holders[page := int(self.pages[slot, at])] > 1:
            self.pages[slot, at] = target = self._take()
            self._release(page)
            self._copies.append((page, target))

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies due since the last call, (source page, target page), to be made in order before anything is
        written."""
        copies, self._copies = self._copies, []
        return copies

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)
