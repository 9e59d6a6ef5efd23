"""Which tokens each slot of the cache holds, and where a new request goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WORTH_WAITING = 8
"""Tokens that a running request is about to read and a waiting one could then copy: from so many on, it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request goes: `slot`, whose first `reused` tokens are already read, in slot `source`."""

    slot: int
    source: int
    reused: int


class SlotTable:
    """The tokens of every slot, whether a request runs in it, and how many of its tokens are in the cache.

    A slot keeps its tokens after its request has ended, so that the next turn, or a sibling with the same prompt, finds
    them: the longest common prefix with any slot is reused.
    """

    def __init__(self, slots: int, context: int) -> None:
        self.tokens = np.full((slots, context), -1, dtype=np.int32)  # -1 where there is none
        self.read = np.zeros(slots, dtype=np.int64)
        self.busy = np.zeros(slots, dtype=bool)
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    def place(self, tokens: Sequence[int]) -> Place | None:
        """A slot for a request that continues `tokens`; None if it has to wait.

        It waits if every slot is busy, or if one is about to read what the request could copy. A slot is reused in
        place if the request continues all that it holds; otherwise the idle slot that was used longest ago is taken.
        """
        if self.busy.all():
            return None
        prompt = np.asarray(tokens, dtype=np.int32)
        common = self._common_prefixes(prompt)
        # The last token is always read again: its logits are where the completion begins.
        ready = np.minimum(np.minimum(common, self.read), len(prompt) - 1)
        source = int(np.argmax(2 * ready + ~self.busy))
        if (common * self.busy).max() >= ready[source] + WORTH_WAITING:
            return None
        in_place = not self.busy[source] and common[source] >= self.read[source]
        slot = source if in_place else int(np.argmin(np.where(self.busy, np.iinfo(np.int64).max, self._last_used)))
        return Place(slot=slot, source=source, reused=int(ready[source]))

    def occupy(self, slot: int, tokens: Sequence[int], *, read: int) -> None:
        """A request that continues `tokens`, of which `read` are in the cache, begins to run in `slot`."""
        self.tokens[slot, : len(tokens)] = tokens
        self.tokens[slot, len(tokens) :] = -1
        self.read[slot] = read
        self.busy[slot] = True

    def release(self, slot: int) -> None:
        """The request in `slot` has ended; its tokens stay until the slot is needed."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self.busy[slot] = False

    def forget(self) -> None:
        """Nothing that was read is valid any more, and no trace of it is left: what follows must not depend on it."""
        self.tokens.fill(-1)
        self.read.fill(0)
        self._last_used.fill(0)
        self._clock = 0

    def _common_prefixes(self, prompt: np.ndarray) -> np.ndarray:
        """The length of the longest common prefix of `prompt` (n) with each slot."""
        differs = self.tokens[:, : len(prompt)] != prompt
        return np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
