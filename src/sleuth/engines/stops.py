"""Stop strings, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Watches the text of one completion for the first of `stops` to be complete, also across pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self._reach = max(map(len, self.stops), default=1) - 1
        self._tail = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The part of `piece` that belongs to the completion, and whether a stop string ends it."""
        text = self._tail + piece
        ends = [at + len(stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            return text[len(self._tail) : min(ends)], True
        self._tail = text[-self._reach :] if self._reach else ""
        return piece, False
