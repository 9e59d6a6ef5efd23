"""Attention of rows that write a token each, compiled for CPUs: every row's own keys, and what rows share.

Rows have their own keys, few and of their own number, and share prompts of any length. For a library's calls they would
be padded, gathered, called for one by one, and merged; a loop reads exactly what is there, and what is shared while it
is in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import prange
from torch import Tensor

from sleuth.engines.local.decode_attention import Trunk
from sleuth.learn.compiled import LOG2_E, compiled, compiled_in_parallel, greatest, power_of_two

TILE = 64
"""Keys that are read together: with their values they stay in the innermost cache."""


class CompiledDecodeAttention:
    """Rows b of a batch, each with the keys from `begins[b]` up to `lengths[b]`, that one included, of `slots[b]`; and
    level by level what rows have in common before that.

    Rows that have anything in common are a family. Families are independent of one another, and so are heads.
    """

    def __init__(
        self, slots: np.ndarray, begins: np.ndarray, lengths: np.ndarray, levels: Sequence[Sequence[Trunk]]
    ) -> None:
        family = np.arange(len(slots))  # by its first row
        for trunk in levels[0] if levels else []:
            family[trunk.rows] = trunk.rows[0]
        self.rows = np.argsort(family, kind="stable")
        self.own = np.stack([slots, begins, lengths + 1], axis=1)[self.rows]  # (B, 3)
        trunks = [trunk for level in levels for trunk in level]
        trunks.sort(key=lambda trunk: family[trunk.rows[0]])  # in a family still level by level
        self.sharers = np.array([row for trunk in trunks for row in trunk.rows], dtype=np.int64)
        edges = np.cumsum([0, *(len(trunk.rows) for trunk in trunks)])
        told = [(trunk.slot, trunk.keys.start, trunk.keys.stop) for trunk in trunks]
        self.shared = np.column_stack([np.array(told, dtype=np.int64).reshape(-1, 3), edges[:-1], edges[1:]])
        of_rows, of_trunks = family[self.rows], np.array([family[trunk.rows[0]] for trunk in trunks], dtype=np.int64)
        names = np.unique(of_rows)
        self.families = np.stack(
            [np.searchsorted(of, names, side) for of in (of_rows, of_trunks) for side in ("left", "right")], axis=1
        )  # (families, 4): its stretches of rows and of trunks

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D], all of fp32 -> as
        query."""
        output = query.new_zeros(*query.shape[:-1], values.shape[-1])
        largest = np.full(query.shape[:-1], -np.inf, dtype=np.float32)
        total = np.zeros(query.shape[:-1], dtype=np.float32)
        _attend(
            query.contiguous().numpy(), keys.numpy(), values.numpy(), self.families, self.rows, self.own, self.shared,
            self.sharers, np.float32(scale) * LOG2_E, largest, total, output.numpy(),
        )  # fmt: skip
        return output


@compiled_in_parallel
def _attend(query, keys, values, families, rows, own, shared, sharers, scale, largest, total, output):
    """Scores are in powers of two, not of e: `scale` has log2(e) in it."""
    kv_heads = query.shape[1]
    for item in prange(len(families) * kv_heads):
        first, stop, first_trunk, last_trunk = families[item // kv_heads]
        of_family = rows[first:stop], own[first:stop], shared[first_trunk:last_trunk], sharers
        _attend_family(item % kv_heads, query, keys, values, *of_family, scale, largest, total, output)


@compiled
def _attend_family(head, query, keys, values, rows, own, shared, sharers, scale, largest, total, output):
    """Its rows look at their own keys, then at those of its trunks, with the heads that have the keys of `head`."""
    scores = np.empty(TILE, dtype=np.float32)
    for number in range(len(rows)):
        row = rows[number]
        slot, begin, end = own[number]
        for first in range(begin, end, TILE):
            tile = slice(first, min(first + TILE, end))
            seen = largest[row, head], total[row, head], output[row, head]
            _look(query[row, head], keys[slot, head, tile], values[slot, head, tile], scale, scores, *seen)
    for slot, begin, end, start, stop in shared:
        for first in range(begin, end, TILE):
            tile = slice(first, min(first + TILE, end))
            for row in sharers[start:stop]:
                seen = largest[row, head], total[row, head], output[row, head]
                _look(query[row, head], keys[slot, head, tile], values[slot, head, tile], scale, scores, *seen)
    for row in rows:
        for one in range(total.shape[-1]):
            for at in range(output.shape[-1]):
                output[row, head, one, at] /= total[row, head, one]


@compiled
def _look(query, keys, values, scale, scores, largest, total, output):
    """Heads of `query` (sharing, D) look at a few more `keys` and `values` (L, D). What they saw so far is `output`
    (sharing, D) over `total` (sharing); the weight of a key is 2 to the power of how far it lies below `largest`
    (sharing), as in arXiv:1805.02867."""
    count, size = values.shape
    for one in range(len(query)):
        fours = count - count % 4
        for key in range(0, fours, 4):  # four sums at once, as one is waited for longer than it takes
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
        for key in range(0, fours, 4):  # the output is written once for four of them
            a, b, c, d = scores[key], scores[key + 1], scores[key + 2], scores[key + 3]
            for at in range(size):
                output[one, at] += (
                    a * values[key, at] + b * values[key + 1, at] + c * values[key + 2, at] + d * values[key + 3, at]
                )
        for key in range(fours, count):
            for at in range(size):
                output[one, at] += scores[key] * values[key, at]
