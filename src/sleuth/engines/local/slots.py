"""The tokens in each slot of the KV cache, the placement of requests, their decoding state, and the tokens that a card
still samples while the host prepares the next step.

That step reads the ids of the last one where they were sampled, so that the card never waits for the host. The host
reads them while the next step runs. A request that turns out to have ended is in one step too many: what it sampled
there is dropped. A draw depends on the request's key and the token's position alone, so nobody else notices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.local.cache import PageTable
from sleuth.engines.sampling import Request, uniforms
from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.device import Arrival, sent
from sleuth.types import Sampling

MIN_TOKENS_TO_WAIT_FOR = 8
"""A request waits for another one's prefill if that lets it reuse at least this many more tokens."""
UNKNOWN = -1
"""In the place of a token that is being sampled; no prompt has it."""
DECODING_PER_HELD = 3
"""So many slots go on where one has to wait."""
RUNNING_PER_SPARE_PAGE = 4
"""A request is admitted if a page is left for every so many running ones; fewer to spare, and more are preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens of a slot to prefill: `PrefillChunk(slot=3, start=7, stop=9)` are those at positions 7 and 8."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlacement:
    """Where a request goes: `slot`, whose first `reused` tokens are those of slot `source`, once cached there."""

    slot: int
    source: int
    reused: int


class SlotTable:
    """The tokens and pages of every slot, whether a request runs in it, and how many of its tokens are in the cache.

    A slot keeps its tokens and pages after its request has ended, so that the next turn, or a sibling with the same
    prompt, can reuse the longest common prefix with any slot, until their pages are needed. `pages` is the size of the
    pool; None: enough for all slots.
    """

    def __init__(self, slots: int, context: int, *, page_size: int = PAGE, pages: int | None = None) -> None:
        self.tokens = np.full((slots, context), UNKNOWN, dtype=np.int32)  # also where there is none
        self.length = np.zeros(slots, dtype=np.int64)  # in tokens
        self.cached = np.zeros(slots, dtype=np.int64)  # of these, in the cache
        self.busy = np.zeros(slots, dtype=bool)
        total = slots * -(-context // page_size) if pages is None else pages
        self.pages = PageTable(slots=slots, context=context, page_size=page_size, total=total)
        self._waiting = np.zeros(slots, dtype=bool)  # busy, and its prefix is not cached yet
        self._paused = np.zeros(slots, dtype=bool)  # busy, and the token that is being sampled is its last
        self._pending: list[SlotPlacement] = []
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    def place(self, tokens: Sequence[int]) -> SlotPlacement | None:
        """A slot for a request that continues `tokens`; None if every slot is busy or the free pages do not suffice.

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
        placement = SlotPlacement(slot=slot, source=source, reused=reused)
        return placement if self._has_room(placement, len(prompt)) else None

    def occupy(self, placement: SlotPlacement, tokens: Sequence[int]) -> bool:
        """Starts a request that continues `tokens`. Returns whether its prefix is cached; if not, the slot waits."""
        slot = placement.slot
        ready = bool(self.cached[placement.source] >= placement.reused)
        self.tokens[slot, : len(tokens)] = tokens
        self.tokens[slot, len(tokens) :] = -1
        self.length[slot] = len(tokens)
        self.cached[slot] = 0
        self.busy[slot] = True
        self._limit_reuse(slot)
        self._waiting[slot] = not (ready and self._begin(placement))
        if self._waiting[slot]:
            self.pages.drop(slot)
            self._pending.append(placement)
        return not self._waiting[slot]

    def take_ready(self) -> Iterator[SlotPlacement]:
        """The waiting placements whose prefix is now cached, in the order of their arrival, as far as free pages
        suffice; they wait no longer."""
        for slot in [placement.slot for placement in self._pending]:
            placement = next(one for one in self._pending if one.slot == slot)  # making room can shorten what it reuses
            if self.cached[placement.source] >= placement.reused and self._begin(placement):
                self._pending = [other for other in self._pending if other.slot != slot]
                self._waiting[slot] = False
                yield placement

    def append(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """Appends one of `tokens` (B) to each of `slots` (B)."""
        self.tokens[slots, self.length[slots]] = tokens
        self.length[slots] += 1

    def schedule(self, budget: int, *, hold: bool = False) -> tuple[np.ndarray, list[PrefillChunk]] | None:
        """The decoding slots (one token to compute), rising, and prefill chunks of at most `budget` tokens in total;
        None if the free pages do not suffice, or nothing can run: a request must then be preempted. With `hold` there
        are no chunks while `DECODING_PER_HELD` times as many slots decode as wait for theirs.

        All decoding slots are in every forward: decoding never waits for prefill.
        """
        running = np.flatnonzero(self.busy & ~self._waiting & ~self._paused)
        count = self.length[running] - self.cached[running]
        held = np.count_nonzero(count > 1)
        if hold and len(running) - held >= max(1, DECODING_PER_HELD * held):
            budget = 0
        chunks = []
        for slot in running[count > 1].tolist():
            start = int(self.cached[slot])
            stop = min(int(self.length[slot]), start + budget)
            budget -= stop - start
            if stop > start:
                chunks.append(PrefillChunk(slot=slot, start=start, stop=stop))
        decoding = running[count == 1]
        written = np.concatenate([decoding, np.array([chunk.slot for chunk in chunks], dtype=np.int64)])
        return (decoding, chunks) if len(running) and self._make_writable(written) else None

    def pause(self, slots: np.ndarray) -> None:
        """Leaves `slots` out of forwards until their requests end."""
        self._paused[slots] = True

    def trim(self, slot: int, length: int | None = None) -> None:
        """Forgets the tokens of a busy slot from `length` on, by default those that are unknown, and that the last one
        left is cached: the next prompt recomputes it."""
        if length is None:
            length = int(np.count_nonzero(self.tokens[slot, : self.length[slot]] != UNKNOWN))
        self.tokens[slot, length:] = UNKNOWN
        self.length[slot] = length
        if self.cached[slot] >= length:
            self.cached[slot] = length - 1
            self.pages.share(slot, slot, length - 1)

    def release(self, slot: int) -> None:
        """Ends the request in `slot`; its tokens stay until the slot or its pages are needed. Placements that wait for
        more of its tokens reuse what is cached."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self.busy[slot] = self._waiting[slot] = self._paused[slot] = False
        self._pending = [placement for placement in self._pending if placement.slot != slot]
        self._limit_reuse(slot)

    def evict(self, slot: int) -> None:
        """Forgets the tokens of an idle slot and takes its pages."""
        self.pages.drop(slot)
        self.tokens[slot] = -1
        self.length[slot] = self.cached[slot] = 0
        self._limit_reuse(slot)

    def clear(self) -> None:
        """Discards all cached tokens and resets the clock, so that later placements do not depend on the past."""
        self.tokens.fill(-1)
        self.length.fill(0)
        self.cached.fill(0)
        self.pages.clear()
        self._last_used.fill(0)
        self._clock = 0

    def _begin(self, placement: SlotPlacement) -> bool:
        """Gives the slot the pages of its prefix, and new ones for the rest of its prompt. Returns whether there are
        enough."""
        slot, length = placement.slot, int(self.length[placement.slot])
        self.pages.share(placement.source, slot, placement.reused)
        if not self._free_pages(self.pages.needed(length) - int(self.pages.held[slot])):
            self.pages.drop(slot)
            return False
        self.pages.extend(slot, length)
        self.cached[slot] = placement.reused
        return True

    def _has_room(self, placement: SlotPlacement, length: int) -> bool:
        """Whether a prompt of `length` tokens fits besides the running requests, with some pages to spare for them."""
        pages, reused = self.pages, placement.reused // self.pages.page_size
        needed = pages.needed(length) + math.ceil(self.busy.sum() / RUNNING_PER_SPARE_PAGE)
        if needed - reused <= pages.free:
            return True
        # Without the pages of idle slots, of which the placement keeps those that it reuses.
        return needed - reused * self.busy[placement.source] <= pages.total - pages.held_by(self.busy)

    def _make_writable(self, slots: np.ndarray) -> bool:
        """Takes the pages that `slots` need to write their next tokens. Returns whether there are enough."""
        table, positions = self.pages, self.cached[slots]
        if not self._free_pages(len(table.not_writable(slots, positions))):
            return False
        for index in table.not_writable(slots, positions).tolist():
            table.make_writable(int(slots[index]), int(positions[index]))
        return True

    def _free_pages(self, count: int) -> bool:
        """Evicts idle slots, the least recently used first, until `count` pages are free. Returns whether they are."""
        while self.pages.free < count:
            idle = np.flatnonzero(~self.busy & (self.pages.held > 0))
            if not len(idle):
                return False
            self.evict(int(idle[np.argmin(self._last_used[idle])]))
        return True

    def _limit_reuse(self, source: int) -> None:
        """Placements that wait for tokens of an idle slot reuse no more than is cached."""
        cached = int(self.cached[source])
        self._pending = [
            replace(other, reused=min(other.reused, cached)) if other.source == source else other
            for other in self._pending
        ]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTokens:
    """Tokens that are being sampled: for each of `slots` (B), in which `requests` (B) run, that at `positions` (B)."""

    slots: np.ndarray
    positions: np.ndarray
    requests: Sequence[Request]
    arrival: Arrival

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens (B) and their log-probabilities (B); waits until they are there."""
        tokens, logprobs = self.arrival.read()
        return tokens.astype(np.int64), logprobs


class SampledTokens:
    """The token that was sampled last in each slot, on the device, and the `pending` ones that the host has not read.

    `by_slot` (slots + 1) has a place more, for rows that only fill up a batch.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.by_slot = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.pending: PendingTokens | None = None

    def store(self, slots: np.ndarray, sampled: Tensor) -> None:
        """Stores the tokens of `sampled` (2, B), which has log-probabilities too, for the next step."""
        self.by_slot.index_copy_(0, sent(slots, sampled.device), sampled[0].long())

    def wait_for(
        self, sampled: Tensor, slots: np.ndarray, positions: np.ndarray, requests: Sequence[Request]
    ) -> PendingTokens | None:
        """Makes `sampled` (2, B) the pending tokens. Returns the ones before."""
        before, arrival = self.pending, Arrival(sampled)
        self.pending = PendingTokens(slots=slots, positions=positions, requests=requests, arrival=arrival)
        return before

    def take(self) -> PendingTokens | None:
        """The pending tokens, which are so no longer."""
        pending, self.pending = self.pending, None
        return pending


def with_sampled(tokens: Tensor, slots: Tensor, by_slot: Tensor) -> Tensor:
    """`tokens` (B) of `slots` (B), those that the host does not know (negative) from `by_slot`."""
    return torch.where(tokens < 0, by_slot.index_select(0, slots), tokens)
