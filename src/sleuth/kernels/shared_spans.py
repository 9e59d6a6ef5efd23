"""The spans of keys that decoding rows share: the same tokens of the same positions, read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SPAN_COST = 256
"""A span costs as much as reading this many keys for one row; spans that save less are not shared."""
PART = 128
"""Keys of a part on a card, by their positions: with few, most of a short prompt is in whole parts, which siblings
share; with many, fewer outputs of parts are weighed. A multiple of a page."""
SIBLINGS = 8
"""Rows that share a part at most: with two heads each they fill the 16 rows of a product on matrix units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpan:
    """`rows` of the batch have the same tokens in the span `keys`, which is read from `slot` for all of them.

    `SharedSpan(rows=[0, 1, 2], slot=5, keys=slice(0, 200))`: three siblings and their prompt.
    """

    rows: Sequence[int]
    slot: int
    keys: slice


def find_shared_spans(
    tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray
) -> tuple[list[list[SharedSpan]], np.ndarray]:
    """The spans that rows share, level by level, and where each row's own tokens start (B).

    `tokens` [slots, context]; row b has `lengths[b]` of those of `slots[b]` in the cache. A row is in at most one span
    of a level; the spans of a level start where those of the level before end.
    """
    order, common = _sorted_by_tokens(tokens[slots, : max(1, lengths.max())], lengths)
    levels: list[list[SharedSpan]] = []
    starts = [0] * len(slots)
    pending = [(0, len(slots), 0, 0)]  # ranges of the sorted rows: first, stop; the depth and level reached
    while pending:
        first, stop, depth, level = pending.pop()
        inner = common[first + 1 : stop]
        shared = min(inner, default=depth)
        if len(inner) * (shared - depth) >= 2 * SPAN_COST:
            if level == len(levels):
                levels.append([])
            rows = sorted(order[first:stop])
            levels[level].append(SharedSpan(rows=rows, slot=int(slots[rows[0]]), keys=slice(depth, shared)))
            for row in rows:
                starts[row] = shared
            depth, level = shared, level + 1
        edges = [first, *(first + 1 + at for at, length in enumerate(inner) if length == shared), stop]
        pending += [(a, b, depth, level) for a, b in pairwise(edges) if b - a > 1]
    for level in levels:
        level.sort(key=lambda span: span.rows[0])
    return levels, np.array(starts, dtype=np.int64)


def _sorted_by_tokens(tokens: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int]]:
    """The rows in an order that groups common prefixes, and the length of each one's common prefix with the row before
    it in that order: (B), (B)."""
    keys = [row.tobytes() for row in tokens]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    tokens, lengths = tokens[order], lengths[order]
    differs = tokens[1:] != tokens[:-1]
    same = np.where(differs.any(axis=1), differs.argmax(axis=1), tokens.shape[1])
    return order, [0, *np.minimum(same, np.minimum(lengths[1:], lengths[:-1])).tolist()]


def pack_parts(pages: np.ndarray, lengths: np.ndarray, page_size: int) -> np.ndarray:
    """What a card reads for decoding rows, in one array of int32: a table (B, 2 + n), then jobs (1 + J, 3).

    Row b has `lengths[b]` keys in its `pages[b]` (B, n). The table has its number, its length and its pages, of rows in
    an order in which those with common pages are neighbours. A job is a part of `PART` keys that `count` rows from
    `first` of that order read together, as they hold the same pages up to its end: (part, first, count). Before the
    jobs is their number.

    Siblings of 1,000 and 1,001 tokens that share 10 pages of 64: parts 0 to 4 are a job each, parts 5 to 7 two.
    """
    pages = np.ascontiguousarray(pages, dtype=np.int32)
    order = pages.view(f"V{pages.itemsize * pages.shape[1]}")[:, 0].argsort(kind="stable")
    pages, lengths = pages[order], lengths[order]
    differs = pages[1:] != pages[:-1]
    same = np.where(differs.any(axis=1), differs.argmax(axis=1), pages.shape[1]) * page_size  # keys
    shared = np.zeros_like(lengths)  # parts that a row shares with the one before it
    shared[1:] = np.minimum(same, np.minimum(lengths[1:], lengths[:-1])) // PART
    row, part = (np.arange(count, dtype=np.int32) for count in (len(pages), -(-int(lengths.max()) // PART)))
    alone = part[:, None] >= shared.astype(np.int32)  # (parts, B)
    place = row - np.maximum.accumulate(np.where(alone, row, 0), axis=1)  # among the rows that share the part
    begins = alone | (place % SIBLINGS == 0)
    ends = np.ones_like(begins)
    ends[:, :-1] = begins[:, 1:]
    read = part[:, None] * PART < lengths.astype(np.int32)
    first, last = (np.flatnonzero(edges & read).astype(np.int32) for edges in (begins, ends))
    parts = first // len(pages)
    jobs = np.column_stack([parts, first - parts * len(pages), last - first + 1])
    table = np.column_stack([order, lengths, pages])
    return np.concatenate([table.ravel(), [len(jobs), 0, 0], jobs.ravel()], dtype=np.int32, casting="unsafe")
