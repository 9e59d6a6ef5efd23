"""Attention of rows that write a token each, by torch's kernels and matrix products: on any device, of any type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.local.attention_plan import Trunk
from sleuth.engines.local.lse_attention import attend_with_lse, merge
from sleuth.engines.local.window_attention import Windows, index_of


class DecodeAttention:
    """How slots that write a token each read their keys: `lengths` (B) are in the cache, the token itself comes next.

    `levels` are what rows share, `rows` (M) those of a level, None where they are all rows in order. `own` are the keys
    of each row alone, from `begins` (B) on.
    """

    def __init__(
        self,
        slots: np.ndarray,
        begins: np.ndarray,
        lengths: np.ndarray,
        levels: Sequence[Sequence[Trunk]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.levels = levels
        self.rows = [index_of([row for trunk in level for row in trunk.rows], len(slots), device) for level in levels]
        self.own = Windows(slots, begins, lengths, device, dtype)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D] -> as query.

        Each row's own keys first; then, level by level, what it shares is merged in.
        """
        output, weight = self.own.attend(query, keys, values, scale)
        for trunks, rows in zip(self.levels, self.rows, strict=True):
            if rows is None:
                output, weight = merge(output, weight, *_attend_trunks(query, trunks, keys, values, scale))
            else:
                shared = _attend_trunks(query[rows], trunks, keys, values, scale)
                seen, of_seen = merge(output[rows], weight[rows], *shared)
                output[rows], weight[rows] = seen, of_seen.to(weight.dtype)
        return output


def _attend_trunks(
    query: Tensor, trunks: Sequence[Trunk], keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(M, kv_heads, sharing, D) -> the same and its log-sum-exp (M, kv_heads, sharing). The queries of all rows and
    heads that share a stretch of keys are as one head's."""
    count, kv_heads, sharing, _ = query.shape
    folded = query.transpose(0, 1).reshape(1, kv_heads, count * sharing, -1)
    parts, first = [], 0
    for trunk in trunks:
        stop = first + len(trunk.rows) * sharing
        stretch = (slice(trunk.slot, trunk.slot + 1), slice(None), trunk.keys)
        parts.append(attend_with_lse(folded[:, :, first:stop], keys[stretch], values[stretch], scale))
        first = stop
    output, weight = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    shape = (kv_heads, count, sharing)
    return output.view(*shape, -1).transpose(0, 1), weight.view(shape).transpose(0, 1)
