"""What rows that decode read of the keys that they share: spans of the same tokens at the same positions, read once for
all of them. On a CPU compiled attention to them and to each row's own keys, for a card the parts of keys that
`attention_kernels` reads.

Library calls would need padding, gathering and merging for rows of differing lengths; a compiled loop reads exactly the
keys there are, and shared ones while they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from sleuth.kernels.compiled import LOG2_E, compiled, compiled_in_parallel, greatest, power_of_two, prange

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


class CompiledDecodeAttention:
    """Attention of row b to the keys `starts[b]` to `lengths[b]`, inclusive, of `slots[b]`, and to the spans it shares.
    `pages` [slots, n] is the page table.

    Rows that share a span form a family. Families and heads are independent and run in parallel.
    """

    def __init__(
        self,
        pages: np.ndarray,
        slots: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        levels: Sequence[Sequence[SharedSpan]],
    ) -> None:
        self.pages = pages
        self._rows = slots, lengths
        family = np.arange(len(slots))  # by its first row
        for span in levels[0] if levels else []:
            family[span.rows] = span.rows[0]
        self.rows = np.argsort(family, kind="stable")
        self.own = np.stack([slots, starts, lengths + 1], axis=1)[self.rows]  # (B, 3)
        spans = [span for level in levels for span in level]
        spans.sort(key=lambda span: family[span.rows[0]])  # in a family still level by level
        self.span_rows = np.array([row for span in spans for row in span.rows], dtype=np.int64)
        edges = np.cumsum([0, *(len(span.rows) for span in spans)])
        bounds = [(span.slot, span.keys.start, span.keys.stop) for span in spans]
        self.shared = np.column_stack([np.array(bounds, dtype=np.int64).reshape(-1, 3), edges[:-1], edges[1:]])
        of_rows, of_spans = family[self.rows], np.array([family[span.rows[0]] for span in spans], dtype=np.int64)
        family_ids = np.unique(of_rows)
        self.families = np.stack(
            [np.searchsorted(ids, family_ids, side) for ids in (of_rows, of_spans) for side in ("left", "right")],
            axis=1,
        )  # (families, 4): the ranges of its rows and of its spans

    def within(self, window: int) -> CompiledDecodeAttention:
        """The attention to the last `window` keys alone: each row's own, as windows of rows that share begin apart."""
        slots, lengths = self._rows
        return CompiledDecodeAttention(self.pages, slots, np.maximum(0, lengths + 1 - window), lengths, [])

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys`, `values` [kv_heads, pages, page_size, D] -> as query; all fp32."""
        output = query.new_zeros(*query.shape[:-1], values.shape[-1])
        largest = np.full(query.shape[:-1], -np.inf, dtype=np.float32)
        total = np.zeros(query.shape[:-1], dtype=np.float32)
        _attend(
            query.contiguous().numpy(), keys.numpy(), values.numpy(), self.pages, self.families, self.rows, self.own,
            self.shared, self.span_rows, np.float32(scale) * LOG2_E, largest, total, output.numpy(),
        )  # fmt: skip
        return output


@compiled_in_parallel
def _attend(query, keys, values, pages, families, rows, own, shared, span_rows, scale, largest, total, output):
    """`scale` includes log2(e): the softmax is computed in powers of 2."""
    kv_heads = query.shape[1]
    for item in prange(len(families) * kv_heads):
        first, stop, first_span, last_span = families[item // kv_heads]
        members = rows[first:stop], own[first:stop], shared[first_span:last_span], span_rows
        head = item % kv_heads
        _attend_family(head, query, keys[head], values[head], pages, *members, scale, largest, total, output)


@compiled
def _attend_family(head, query, keys, values, pages, rows, own, shared, span_rows, scale, largest, total, output):
    """Attention of a family's rows to their own keys, then to its shared spans, page by page, for KV head `head`."""
    size = keys.shape[1]
    scores = np.empty(size, dtype=np.float32)
    for number in range(len(rows)):
        row = rows[number]
        slot, begin, end = own[number]
        for at in range(begin // size, (end + size - 1) // size):
            page, tile = pages[slot, at], slice(max(begin - at * size, 0), min(end - at * size, size))
            state = largest[row, head], total[row, head], output[row, head]
            _attend_tile(query[row, head], keys[page, tile], values[page, tile], scale, scores, *state)
    for slot, begin, end, start, stop in shared:
        for at in range(begin // size, (end + size - 1) // size):
            page, tile = pages[slot, at], slice(max(begin - at * size, 0), min(end - at * size, size))
            for row in span_rows[start:stop]:
                state = largest[row, head], total[row, head], output[row, head]
                _attend_tile(query[row, head], keys[page, tile], values[page, tile], scale, scores, *state)
    for row in rows:
        for one in range(total.shape[-1]):
            for at in range(output.shape[-1]):
                output[row, head, one, at] /= total[row, head, one]


@compiled
def _attend_tile(query, keys, values, scale, scores, largest, total, output):
    """Updates the online softmax (arXiv:1805.02867) of `query` (sharing, D) with the tile `keys` and `values` (L, D).
    `output` (sharing, D) has to be divided by `total` (sharing); `largest` (sharing) is the maximum score so far."""
    count, size = values.shape
    for one in range(len(query)):
        fours = count - count % 4
        for key in range(0, fours, 4):  # four independent sums hide the latency of one
            a = b = c = d = np.float32(0)
            for at in range(query.shape[1]):
                a += query[one, at] * keys[key, at]
                b += query[one, at] * keys[key + 1, at]
                c += query[one, at] * keys[key + 2, at]
                d += query[one, at] * keys[key + 3, at]
            scores[key], scores[key + 1], scores[key + 2], scores[key + 3] = a * scale, b * scale, c * scale, d * scale
        for key in range(fours, count):
            score = np.float32(0)
            for at in range(query.shape[1]):
                score += query[one, at] * keys[key, at]
            scores[key] = score * scale
        top = max(largest[one], greatest(scores[:count]))
        added = np.float32(0)
        for key in range(count):
            scores[key] = power_of_two(scores[key] - top)
            added += scores[key]
        shrunk = power_of_two(largest[one] - top)
        largest[one] = top
        total[one] = total[one] * shrunk + added
        for at in range(size):
            output[one, at] *= shrunk
        for key in range(0, fours, 4):  # one write of the output for four keys
            a, b, c, d = scores[key], scores[key + 1], scores[key + 2], scores[key + 3]
            for at in range(size):
                output[one, at] += (
                    a * values[key, at] + b * values[key + 1, at] + c * values[key + 2, at] + d * values[key + 3, at]
                )
        for key in range(fours, count):
            for at in range(size):
                output[one, at] += scores[key] * values[key, at]
