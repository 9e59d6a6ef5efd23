"""Attention over the slots of the KV cache: a forward takes ragged rows packed into one sequence, without padding.

All else in a causal model works on single tokens, so rows need no common length there. Here, decoding slots are batched
and read shared prefixes once; each prefill chunk has its own call.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from sleuth.engines.local.cache import SlotCache
from sleuth.engines.local.compiled_decode_attention import CompiledDecodeAttention
from sleuth.engines.local.decode_attention import DecodeAttention, attend_with_lse, find_shared_spans, has_kernel, merge
from sleuth.engines.local.slots import PrefillChunk
from sleuth.learn.compiled import is_compiled_for
from sleuth.types import SleuthError

SLOT_ATTENTION = "sleuth_slots"
"""The name under which transformers knows `attend_slots`."""


class Batch:
    """The T tokens of one forward, packed: one for each of `decoding` (slots, rising), then those of each chunk.
    `tokens` [slots, context] and `cached` [slots] are those of the slot table. `output_indices` are those
    whose logits are needed; None if (nearly) all."""

    output_indices: Tensor | None = None

    def __init__(
        self,
        tokens: np.ndarray,
        cached: np.ndarray,
        decoding: np.ndarray,
        chunks: Sequence[PrefillChunk],
        cache: SlotCache,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.cache = cache
        self.chunks = chunks
        self.last_only = False
        self.count = len(decoding)
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        slots = np.concatenate([decoding, np.repeat([chunk.slot for chunk in chunks], lengths).astype(np.int64)])
        positions = np.concatenate([cached[decoding], *(np.arange(chunk.start, chunk.stop) for chunk in chunks)])
        packed = torch.from_numpy(np.stack([tokens[slots, positions], slots, positions])).to(device)  # one transfer
        self.tokens, self.slots, self.positions = packed  # (T) each
        self.cache_rows: Tensor | None = None  # of the tokens' keys, set in the first layer
        self.chunk_ends = len(decoding) + np.cumsum(lengths, dtype=np.int64)
        self.decode = _decode_attention(tokens, decoding, cached[decoding], device, dtype) if len(decoding) else None

    def for_last_layer(self) -> Batch:
        """The batch for the last layer, where of a chunk only the last token's query is computed."""
        narrow = copy.copy(self)
        narrow.last_only = True
        return narrow


def _decode_attention(
    tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray, device: torch.device, dtype: torch.dtype
) -> CompiledDecodeAttention | DecodeAttention:
    levels, starts = find_shared_spans(tokens, slots, lengths)
    if is_compiled_for(device, dtype):
        return CompiledDecodeAttention(slots, starts, lengths, levels)
    return DecodeAttention(slots, starts, lengths, levels, device, dtype)


def attend_slots(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer while the engine runs.

    `query` (1, H, T, D), `key` and `value` (1, kv_heads, T, D) of the new tokens -> (1, T, H, D). Keys and values are
    written to the cache first.
    """
    if any(options.get(name) is not None for name in ("sliding_window", "softcap", "s_aux")):
        raise SleuthError(f"the local engine has no sliding windows, soft caps or sinks: {type(module).__name__}")
    _, kv_heads, total, size = key.shape
    if batch.cache_rows is None:
        batch.cache_rows = batch.cache.rows(batch.slots, batch.positions, kv_heads)
    rows = batch.cache_rows
    keys, values = batch.cache.write(module.layer_idx, rows, key[0].transpose(0, 1), value[0].transpose(0, 1))
    query = query[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # (T, kv_heads, sharing, D)
    scale = size**-0.5 if scaling is None else scaling
    parts = []
    if batch.decode is not None:
        parts.append(batch.decode.attend(query[: batch.count], keys, values, scale))
    for chunk, end in zip(batch.chunks, batch.chunk_ends.tolist(), strict=True):
        start = chunk.stop - 1 if batch.last_only else chunk.start
        if start > chunk.start:
            parts.append(query.new_zeros(start - chunk.start, *query.shape[1:]))
        chunk_query = query[end - (chunk.stop - start) : end]
        chunk_keys, chunk_values = (tensor[chunk.slot, :, : chunk.stop] for tensor in (keys, values))
        parts.append(_attend_chunk(chunk_query, chunk_keys, chunk_values, start, scale))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.reshape(1, total, -1, output.shape[-1]), None


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, start: int, scale: float) -> Tensor:
    """Causal attention of a prefill chunk whose first token is at position `start`: `query` (n, kv_heads, sharing, D),
    `keys` and `values` (kv_heads, L, D) -> as query."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in (keys, values))
    if not has_kernel(keys, values):
        bias = causal_lower_right(query.shape[2], keys.shape[2])
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
        return output.permute(2, 0, 1, 3)
    output, lse = attend_with_lse(query, keys[:, :, start:], values[:, :, start:], scale, causal=True)
    if start:
        output, _ = merge(output, lse, *attend_with_lse(query, keys[:, :, :start], values[:, :, :start], scale))
    return output.permute(2, 0, 1, 3)


AttentionInterface.register(SLOT_ATTENTION, attend_slots)
