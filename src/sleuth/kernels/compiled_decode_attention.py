"""Decode attention (one query per row), compiled for CPUs: each row's own keys, and the spans that rows share.

Library calls would need padding, gathering and merging for rows of differing lengths; a compiled loop reads exactly the
keys there are, and shared ones while they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from sleuth.kernels.compiled import LOG2_E, compiled, compiled_in_parallel, greatest, power_of_two, prange
from sleuth.kernels.shared_spans import SharedSpan


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
