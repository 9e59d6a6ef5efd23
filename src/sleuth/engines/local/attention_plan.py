"""Which keys are read together when many slots write a token each: what siblings share once for all of them, the rest
slot by slot, in as few calls as pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

CALL = 256
"""An attention call costs as much as reading so many keys for one row: what saves less is not worth a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """`rows` of the batch have the same tokens in the stretch `keys`, which is read from `slot` for all of them.

    `Trunk(rows=[0, 1, 2], slot=5, keys=slice(0, 200))`: three siblings and their prompt.
    """

    rows: Sequence[int]
    slot: int
    keys: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Neighbouring `slots` whose own tokens, in the stretch `keys`, are read in one call."""

    slots: slice
    keys: slice


def find_trunks(tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray) -> tuple[list[list[Trunk]], np.ndarray]:
    """What rows have in common, level by level, and where each row's own tokens begin (B).

    `tokens` [slots, context]; row b has `lengths[b]` of those of `slots[b]` in the cache. A row is in at most one trunk
    of a level; the trunks of a level begin where those of the level before end.
    """
    order, common = _sorted_by_tokens(tokens[slots, : max(1, lengths.max())], lengths)
    levels: list[list[Trunk]] = []
    begins = [0] * len(slots)
    spans = [(0, len(slots), 0, 0)]  # of the sorted rows: first, stop; the depth and level reached
    while spans:
        first, stop, depth, level = spans.pop()
        inner = common[first + 1 : stop]
        shared = min(inner, default=depth)
        if len(inner) * (shared - depth) >= 2 * CALL:
            if level == len(levels):
                levels.append([])
            rows = sorted(order[first:stop])
            levels[level].append(Trunk(rows=rows, slot=int(slots[rows[0]]), keys=slice(depth, shared)))
            for row in rows:
                begins[row] = shared
            depth, level = shared, level + 1
        edges = [first, *(first + 1 + at for at, length in enumerate(inner) if length == shared), stop]
        spans += [(a, b, depth, level) for a, b in pairwise(edges) if b - a > 1]
    for level in levels:
        level.sort(key=lambda trunk: trunk.rows[0])
    return levels, np.array(begins, dtype=np.int64)


def _sorted_by_tokens(tokens: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int]]:
    """The rows in an order that brings common beginnings together, and the common length of each with the one before
    it in that order: (B), (B)."""
    keys = [row.tobytes() for row in tokens]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    tokens, lengths = tokens[order], lengths[order]
    differs = tokens[1:] != tokens[:-1]
    same = np.where(differs.any(axis=1), differs.argmax(axis=1), tokens.shape[1])
    return order, [0, *np.minimum(same, np.minimum(lengths[1:], lengths[:-1])).tolist()]


def find_windows(slots: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Iterator[Window]:
    """Windows over all of `slots` (B, rising) that read from `begins` to `ends` (B).

    Rows go together, along with the slots between them, where what is read in vain costs less than another call.
    """
    first, last, begin, end = int(slots[0]), int(slots[0]), int(begins[0]), int(ends[0])
    for slot, low, high in zip(slots[1:].tolist(), begins[1:].tolist(), ends[1:].tolist(), strict=True):
        wide = slice(min(begin, low), max(end, high))
        apart = (last + 1 - first) * (end - begin) + high - low + CALL
        if (slot + 1 - first) * (wide.stop - wide.start) > apart:
            yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
            first, wide = slot, slice(low, high)
        last, begin, end = slot, wide.start, wide.stop
    yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
