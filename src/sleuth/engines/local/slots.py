"""The tokens in each slot of the KV cache, the placement of requests, and their decoding state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sleuth.engines.sampling import uniforms
from sleuth.types import Sampling

MIN_TOKENS_TO_WAIT_FOR = 8
"""A request waits for another one's prefill if that lets it copy at least this many more tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens of a slot to prefill: `PrefillChunk(slot=3, start=7, stop=9)` are those at positions 7 and 8."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlacement:
    """Where a request goes: `slot`, whose first `reused` tokens are copied from slot `source` once cached there."""

    slot: int
    source: int
    reused: int


class SlotTable:
    """The tokens of every slot, whether a request runs in it, and how many of its tokens are in the cache.

    A slot keeps its tokens after its request has ended, so that the next turn, or a sibling with the same prompt, can
    reuse the longest common prefix with any slot.
    """

    def __init__(self, slots: int, context: int) -> None:
        self.tokens = np.full((slots, context), -1, dtype=np.int32)  # -1 where there is none
        self.length = np.zeros(slots, dtype=np.int64)  # in tokens
        self.cached = np.zeros(slots, dtype=np.int64)  # of these, in the cache
        self.busy = np.zeros(slots, dtype=bool)
        self._waiting = np.zeros(slots, dtype=bool)  # busy, and its prefix is not cached yet
        self._pending: list[SlotPlacement] = []
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    def place(self, tokens: Sequence[int]) -> SlotPlacement | None:
        """A slot for a request that continues `tokens`; None if every slot is busy.

        The request may wait for a prefix that a running one is about to prefill. A slot is reused in place if the
        request continues all its tokens; otherwise the least recently used idle slot is taken.
        """
        if self.busy.all():
            return None
        prompt = np.asarray(tokens, dtype=np.int32)
        # The last token is always recomputed: the completion is sampled from its logits.
        common = self._common_prefixes(prompt)
        usable = np.minimum(common, len(prompt) - 1)
        ready = np.minimum(usable, self.cached)
        source = int(np.argmax(2 * ready + ~self.busy))
        reused = int(ready[source])
        in_place = not self.busy[source] and common[source] >= self.cached[source]
        slot = source if in_place else int(np.argmin(np.where(self.busy, np.iinfo(np.int64).max, self._last_used)))
        awaited = usable * self.busy
        if awaited.max() >= reused + MIN_TOKENS_TO_WAIT_FOR:
            source = int(np.argmax(2 * awaited + ~self._waiting))
            reused = int(awaited[source])
        return SlotPlacement(slot=slot, source=source, reused=reused)

    def occupy(self, placement: SlotPlacement, tokens: Sequence[int]) -> bool:
        """Starts a request that continues `tokens`. Returns whether its prefix is cached; if not, the slot waits."""
        slot = placement.slot
        ready = bool(self.cached[placement.source] >= placement.reused)
        self.tokens[slot, : len(tokens)] = tokens
        self.tokens[slot, len(tokens) :] = -1
        self.length[slot] = len(tokens)
        self.cached[slot] = placement.reused if ready else 0
        self.busy[slot] = True
        self._waiting[slot] = not ready
        if not ready:
            self._pending.append(placement)
        return ready

    def take_ready(self) -> Iterator[SlotPlacement]:
        """The waiting placements whose prefix is now cached, in the order of their arrival; they wait no longer."""
        for placement in list(self._pending):
            if self.cached[placement.source] >= placement.reused:
                self._pending.remove(placement)
                self._waiting[placement.slot] = False
                self.cached[placement.slot] = placement.reused
                yield placement

    def append(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """Appends one of `tokens` (B) to each of `slots` (B)."""
        self.tokens[slots, self.length[slots]] = tokens
        self.length[slots] += 1

    def schedule(self, budget: int) -> tuple[np.ndarray, list[PrefillChunk]]:
        """The decoding slots (one token to compute), rising, and prefill chunks of at most `budget` tokens in total.

        All decoding slots are in every forward: decoding never waits for prefill.
        """
        running = np.flatnonzero(self.busy & ~self._waiting)
        count = self.length[running] - self.cached[running]
        chunks = []
        for slot in running[count > 1].tolist():
            start = int(self.cached[slot])
            stop = min(int(self.length[slot]), start + budget)
            budget -= stop - start
            if stop > start:
                chunks.append(PrefillChunk(slot=slot, start=start, stop=stop))
        return running[count == 1], chunks

    def release(self, slot: int) -> None:
        """Ends the request in `slot`; its tokens stay until the slot is needed. Placements that wait for more of its
        tokens reuse what is cached."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self.busy[slot] = self._waiting[slot] = False
        others = [placement for placement in self._pending if placement.slot != slot]
        cached = int(self.cached[slot])
        self._pending = [
            replace(other, reused=min(other.reused, cached)) if other.source == slot else other for other in others
        ]

    def clear(self) -> None:
        """Discards all cached tokens and resets the clock, so that later placements do not depend on the past."""
        self.tokens.fill(-1)
        self.length.fill(0)
        self.cached.fill(0)
        self._last_used.fill(0)
        self._clock = 0

    def _common_prefixes(self, prompt: np.ndarray) -> np.ndarray:
        """The length of the longest common prefix of `prompt` (n) with each slot."""
        differs = self.tokens[:, : len(prompt)] != prompt
        return np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))


class DecodeState:
    """Sampling state by slot and position; index t is about token t.

    `draws` (slots, context) are the random numbers, `logprobs` (slots, context) those of the generated tokens. A slot's
    stop conditions are due for a check when it samples a token of `watched` (slots, V) or reaches `max_length` (slots).
    """

    def __init__(self, *, slots: int, context: int, vocabulary: int) -> None:
        self.temperatures = np.ones(slots)
        self.draws = np.zeros((slots, context))
        self.logprobs = np.zeros((slots, context), dtype=np.float32)  # as they are stored
        self.max_length = np.zeros(slots, dtype=np.int64)
        self.watched = np.zeros((slots, vocabulary), dtype=bool)

    def begin(self, slot: int, sampling: Sampling, *, length: int, limit: int, watched: np.ndarray | bool) -> None:
        """Prepares `slot` to generate at most `limit` tokens after the first `length`."""
        self.temperatures[slot] = sampling.temperature
        self.draws[slot, length : length + limit] = uniforms(sampling.key, limit)
        self.max_length[slot] = length + limit
        self.watched[slot] = watched

    def due(self, slots: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Mask (B) of `slots` (B) whose stop conditions must be checked after sampling `tokens` (B)."""
        return self.watched[slots, tokens] | (lengths >= self.max_length[slots])
