"""Attention over the slots: a forward reads ragged rows laid end to end as one sequence, with no padding.

Everything in a causal model but attention looks at one token at a time, so the rows of a batch need no common length
there. Attention is done here, window by window: rows in neighbouring slots that are alike in length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from sleuth.engines.cache import SlotCache
from sleuth.types import SleuthError

SLOT_ATTENTION = "sleuth_slots"
"""The name under which transformers knows `attend_slots`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """New tokens for one slot: `Row(slot=3, start=7, tokens=[5, 9])` reads two tokens at positions 7 and 8."""

    slot: int
    start: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows that attend together: R neighbouring `slots` with n new tokens each, at `span` in the sequence.

    `bias` (R, 1, n, L) is 0 where a token may look and -inf where it may not.
    """

    span: slice
    slots: slice
    bias: torch.Tensor


class Batch:
    """The rows of one forward in the order of their slots, laid end to end as one sequence of T tokens."""

    def __init__(self, rows: Sequence[Row], cache: SlotCache, *, device: torch.device, dtype: torch.dtype) -> None:
        self.cache = cache
        tokens = [token for row in rows for token in row.tokens]
        slots = [row.slot for row in rows for _ in row.tokens]
        positions = [position for row in rows for position in range(row.start, row.start + len(row.tokens))]
        self.tokens, self.slots, self.positions = torch.tensor([tokens, slots, positions], device=device)  # each (T)
        self.last = torch.tensor([len(row.tokens) for row in rows], device=device).cumsum(0) - 1  # (B)
        self.windows = list(self._windows(rows, dtype))

    def _windows(self, rows: Sequence[Row], dtype: torch.dtype) -> Iterator[Window]:
        first, begin = 0, 0
        for end in range(1, len(rows) + 1):
            if end < len(rows) and rows[end].slot == rows[end - 1].slot + 1 and _are_alike(rows[first], rows[end]):
                continue
            span = slice(begin, begin + (end - first) * len(rows[first].tokens))
            yield self._window(rows[first:end], span, dtype)
            first, begin = end, span.stop

    def _window(self, rows: Sequence[Row], span: slice, dtype: torch.dtype) -> Window:
        count = len(rows[0].tokens)
        longest = max(row.start for row in rows) + count
        positions = self.positions[span].view(len(rows), 1, count, 1)
        hidden = torch.arange(longest, device=positions.device) > positions
        bias = torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
        return Window(span=span, slots=slice(rows[0].slot, rows[0].slot + len(rows)), bias=bias)


def _are_alike(row: Row, other: Row) -> bool:
    """Whether the rows have as many new tokens, and neither would wait long for the other to be read."""
    shorter, longer = sorted((row.start, other.start))
    return len(row.tokens) == len(other.tokens) and longer <= 2 * shorter + 16


def attend_slots(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls in every layer while the engine runs.

    `query` (1, H, T, D), `key` and `value` (1, kv_heads, T, D) of the new tokens -> (1, T, H, D). They are written to
    the slots first; each window then reads its slots up to its longest row.
    """
    if any(options.get(name) is not None for name in ("sliding_window", "softcap", "s_aux")):
        raise SleuthError(f"the local engine has no sliding windows, soft caps or sinks: {type(module).__name__}")
    keys, values = batch.cache.write(
        module.layer_idx, batch.slots, batch.positions, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    query = query[0].transpose(0, 1)  # (T, H, D)
    kv_heads, sharing = key.shape[1], query.shape[1] // key.shape[1]
    output = query.new_empty(*query.shape[:2], value.shape[-1])
    for window in batch.windows:
        rows, _, count, length = window.bias.shape
        # Heads that share keys become queries of one head, so that no key is ever repeated in memory.
        folded = query[window.span].view(rows, count, kv_heads, sharing, -1).permute(0, 2, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            folded.reshape(rows, kv_heads, sharing * count, -1),
            keys[window.slots, :, :length],
            values[window.slots, :, :length],
            attn_mask=window.bias.repeat(1, 1, sharing, 1) if sharing > 1 and count > 1 else window.bias,
            scale=scaling,
        )
        unfolded = attended.view(rows, kv_heads, sharing, count, -1).permute(0, 3, 1, 2, 4)
        output[window.span] = unfolded.reshape(rows * count, kv_heads * sharing, -1)
    return output[None], None


AttentionInterface.register(SLOT_ATTENTION, attend_slots)
