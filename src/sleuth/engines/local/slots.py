"""Which tokens each slot of the cache holds, and where a new request goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sleuth.engines.sampling import uniforms
from sleuth.types import Sampling

WORTH_WAITING = 8
"""Tokens that a running request is about to read and another could then copy: from so many on, it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A slot that reads several tokens: `Run(slot=3, start=7, stop=9)` reads those at positions 7 and 8."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlacement:
    """Where a request goes: `slot`, whose first `reused` tokens come from slot `source`, once they are read there."""

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
        self.length = np.zeros(slots, dtype=np.int64)  # tokens known
        self.read = np.zeros(slots, dtype=np.int64)  # of these, in the cache
        self.busy = np.zeros(slots, dtype=bool)
        self._waits = np.zeros(slots, dtype=bool)  # busy, and its place is awaited
        self._awaited: list[SlotPlacement] = []
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    def place(self, tokens: Sequence[int]) -> SlotPlacement | None:
        """A slot for a request that continues `tokens`; None if every slot is busy.

        What a running request is about to read is worth waiting for. A slot is reused in place if the request continues
        all that it holds; otherwise the idle slot that was used longest ago is taken.
        """
        if self.busy.all():
            return None
        prompt = np.asarray(tokens, dtype=np.int32)
        # The last token is always read again: its logits are where the completion begins.
        common = self._common_prefixes(prompt)
        usable = np.minimum(common, len(prompt) - 1)
        ready = np.minimum(usable, self.read)
        source = int(np.argmax(2 * ready + ~self.busy))
        reused = int(ready[source])
        in_place = not self.busy[source] and common[source] >= self.read[source]
        slot = source if in_place else int(np.argmin(np.where(self.busy, np.iinfo(np.int64).max, self._last_used)))
        awaited = usable * self.busy
        if awaited.max() >= reused + WORTH_WAITING:
            source = int(np.argmax(2 * awaited + ~self._waits))
            reused = int(awaited[source])
        return SlotPlacement(slot=slot, source=source, reused=reused)

    def occupy(self, place: SlotPlacement, tokens: Sequence[int]) -> bool:
        """A request that continues `tokens` goes to `place`. Whether what it reuses is there; else it waits for
        that."""
        slot = place.slot
        there = bool(self.read[place.source] >= place.reused)
        self.tokens[slot, : len(tokens)] = tokens
        self.tokens[slot, len(tokens) :] = -1
        self.length[slot] = len(tokens)
        self.read[slot] = place.reused if there else 0
        self.busy[slot] = True
        self._waits[slot] = not there
        if not there:
            self._awaited.append(place)
        return there

    def arrived(self) -> Iterator[SlotPlacement]:
        """The places that wait no longer, in the order in which they were taken."""
        for place in list(self._awaited):
            if self.read[place.source] >= place.reused:
                self._awaited.remove(place)
                self._waits[place.slot] = False
                self.read[place.slot] = place.reused
                yield place

    def append(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """A token for each of `slots` (B)."""
        self.tokens[slots, self.length[slots]] = tokens
        self.length[slots] += 1

    def unread(self, budget: int) -> tuple[np.ndarray, list[Run]]:
        """The running slots that have one token to read, rising, and those that have more, these within a budget of
        tokens: who is writing never waits for who is reading."""
        running = np.flatnonzero(self.busy & ~self._waits)
        count = self.length[running] - self.read[running]
        runs = []
        for slot in running[count > 1].tolist():
            start = int(self.read[slot])
            stop = min(int(self.length[slot]), start + budget)
            budget -= stop - start
            if stop > start:
                runs.append(Run(slot=slot, start=start, stop=stop))
        return running[count == 1], runs

    def release(self, slot: int) -> None:
        """The request in `slot` has ended; its tokens stay until the slot is needed. Who waited for more of them makes
        do with what was read."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self.busy[slot] = self._waits[slot] = False
        left = [place for place in self._awaited if place.slot != slot]
        read = int(self.read[slot])
        self._awaited = [
            replace(place, reused=min(place.reused, read)) if place.source == slot else place for place in left
        ]

    def forget(self) -> None:
        """Nothing that was read is valid any more, and no trace of it is left: what follows must not depend on it."""
        self.tokens.fill(-1)
        self.length.fill(0)
        self.read.fill(0)
        self._last_used.fill(0)
        self._clock = 0

    def _common_prefixes(self, prompt: np.ndarray) -> np.ndarray:
        """The length of the longest common prefix of `prompt` (n) with each slot."""
        differs = self.tokens[:, : len(prompt)] != prompt
        return np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))


class DecodeState:
    """By slot and position: index t speaks of token t.

    `draws` are the random numbers (slots, context), `logprobs` those of the tokens written. A look at the text is due
    where a slot writes a token that it has in `watched` (slots, V), or reaches `full` (slots) tokens.
    """

    def __init__(self, *, slots: int, context: int, vocabulary: int) -> None:
        self.temperatures = np.ones(slots)
        self.draws = np.zeros((slots, context))
        self.logprobs = np.zeros((slots, context), dtype=np.float32)  # as they are stored
        self.full = np.zeros(slots, dtype=np.int64)
        self.watched = np.zeros((slots, vocabulary), dtype=bool)

    def begin(self, slot: int, sampling: Sampling, *, length: int, limit: int, watched: np.ndarray | bool) -> None:
        """`slot` will write at most `limit` tokens after the first `length`."""
        self.temperatures[slot] = sampling.temperature
        self.draws[slot, length : length + limit] = uniforms(sampling.key, limit)
        self.full[slot] = length + limit
        self.watched[slot] = watched

    def due(self, slots: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Which of `slots` (B) need a look at their text, now that they have `lengths` (B) and wrote `tokens` (B)."""
        return self.watched[slots, tokens] | (lengths >= self.full[slots])
