"""Attention over the pages of the KV cache: a forward takes ragged rows packed into one sequence, without padding.

All else in a causal model works on single tokens, so rows need no common length there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from sleuth.engines.local.cache import PagedCache
from sleuth.engines.local.paged_attention import (
    ChunkwiseAttention,
    GatheredAttention,
    KernelAttention,
    PromptAttention,
)
from sleuth.engines.local.slots import PrefillChunk, SlotTable, with_sampled
from sleuth.kernels.compiled import is_compiled_for
from sleuth.kernels.decode_attention import CompiledDecodeAttention, find_shared_spans
from sleuth.kernels.transfers import sent
from sleuth.types import SleuthError

DecodeAttention = CompiledDecodeAttention | GatheredAttention | KernelAttention
PrefillAttention = ChunkwiseAttention | PromptAttention

PAGED_ATTENTION = "sleuth_pages"
"""The name under which transformers knows `attend_pages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which of our kernels compute attention on a card: those for tokens that are `decoding`, and those for tokens of
    prompts (`prefilling`). Without them keys are padded, and each chunk has a call of its own."""

    decoding: bool = False
    prefilling: bool = False


class Batch:
    """The T tokens of one forward, packed: one for each of `decoding` (slots, rising), then those of each chunk.
    `output_indices` are those whose logits are needed; None if (nearly) all. `sampled` (slots) has the last tokens of
    slots in which the host does not know them."""

    output_indices: Tensor | None = None

    def __init__(
        self,
        table: SlotTable,
        decoding: np.ndarray,
        chunks: Sequence[PrefillChunk],
        cache: PagedCache,
        *,
        device: torch.device,
        dtype: torch.dtype,
        kernels: Kernels,
        sampled: Tensor | None = None,
    ) -> None:
        self.cache = cache
        self.count = len(decoding)
        prefilled, starts, stops = (
            np.array([getattr(chunk, name) for chunk in chunks], dtype=np.int64) for name in ("slot", "start", "stop")
        )
        slots = np.concatenate([decoding, np.repeat(prefilled, stops - starts)])
        positions = np.concatenate([table.cached[decoding], *map(np.arange, starts, stops)])
        pages = table.pages.pages
        packed = np.stack(
            [table.tokens[slots, positions], positions, pages[slots, positions // cache.page_size], slots]
        )
        self.tokens, self.positions, self.pages, on_device = sent(packed, device)  # (T) each, in one transfer
        if sampled is not None:
            self.tokens = with_sampled(self.tokens, on_device, sampled)
        self.cache_rows: Tensor | None = None  # of the tokens' keys, set in the first layer
        self.chunk_ends = np.cumsum(stops - starts)  # among the chunks' tokens
        self.chunk_outputs: Tensor | None = None  # the chunks' tokens whose outputs are computed; None: all
        self.decode = _decode_attention(table, decoding, device, dtype, kernels) if len(decoding) else None
        self.prefill = None
        if chunks:
            way = PromptAttention if kernels.prefilling else ChunkwiseAttention
            self.prefill = way(pages[prefilled], starts, stops, cache.page_size, device)
        self.longest = int(positions.max()) + 1
        self._by_window: dict[int, tuple[DecodeAttention | None, PrefillAttention | None]] = {}

    def attention(self, window: int | None) -> tuple[DecodeAttention | None, PrefillAttention | None]:
        """The attention of decoding rows and of chunks in a layer whose tokens attend to the last `window` alone."""
        if window is None or window >= self.longest:
            return self.decode, self.prefill
        if window not in self._by_window:
            decode = self.decode and self.decode.within(window)
            self._by_window[window] = decode, self.prefill and self.prefill.within(window)
        return self._by_window[window]

    def rows_for(self, kv_heads: int) -> Tensor:
        """Where the tokens' keys are written (T * kv_heads): see `PagedCache.rows`."""
        if self.cache_rows is None:
            self.cache_rows = self.cache.rows(self.pages, self.positions, kv_heads)
        return self.cache_rows

    def for_last_layer(self) -> Batch:
        """The batch for the last layer, where of a chunk only the last token's query is computed."""
        narrow = self.for_last_tokens()
        if self.prefill is not None:
            narrow.chunk_outputs = sent(self.chunk_ends - 1, self.tokens.device)
        return narrow

    def for_last_tokens(self) -> Batch:
        """The batch whose queries are those of decoding tokens and of the last token of each chunk."""
        narrow = copy.copy(self)
        narrow._by_window = {}
        narrow.prefill = self.prefill and self.prefill.for_last_tokens()
        return narrow

    def last_tokens(self) -> Tensor:
        """Which of the T tokens these are."""
        rows = np.concatenate([np.arange(self.count), self.count + self.chunk_ends - 1])
        return sent(rows, self.tokens.device)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of queries (T, kv_heads, sharing, D), with those of chunks after decoding ones, to a layer's `keys`
        and `values` [kv_heads, pages, page_size, D] -> as query."""
        decode, prefill = self.attention(window)
        if prefill is None:
            assert decode is not None
            return decode.attend(query, keys, values, scale)
        if isinstance(decode, KernelAttention) and isinstance(prefill, PromptAttention) and self.chunk_outputs is None:
            output = query.new_empty(query.shape)
            decode.attend(query[: self.count], keys, values, scale, output[: self.count])
            prefill.attend(query[self.count :], keys, values, scale, output[self.count :])
            return output
        parts = [] if decode is None else [decode.attend(query[: self.count], keys, values, scale)]
        queries, wanted = query[self.count :], self.chunk_outputs
        output = prefill.attend(queries if wanted is None else queries.index_select(0, wanted), keys, values, scale)
        if wanted is not None:
            output = output.new_zeros(len(queries), *output.shape[1:]).index_copy_(0, wanted, output)
        return torch.cat([*parts, output]) if parts else output


def _decode_attention(
    table: SlotTable, slots: np.ndarray, device: torch.device, dtype: torch.dtype, kernels: Kernels
) -> DecodeAttention:
    pages, lengths = table.pages.pages, table.cached[slots]
    if is_compiled_for(device, dtype):
        levels, starts = find_shared_spans(table.tokens, slots, lengths)
        return CompiledDecodeAttention(pages, slots, starts, lengths, levels)
    held = pages[slots, : table.pages.needed(int(lengths.max()) + 1)]
    if kernels.decoding:
        return KernelAttention.of(held, lengths + 1, table.pages.page_size, device)
    return GatheredAttention(held, lengths + 1, table.pages.page_size, device)


def attend_pages(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer while the engine runs.

    `query` (1, H, T, D), `key` and `value` (1, kv_heads, T, D) of the new tokens -> (1, T, H, D). Keys and values are
    written to the cache first.
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise SleuthError(f"the local engine has no soft caps or attention sinks: {type(module).__name__}")
    _, kv_heads, total, size = key.shape
    rows = batch.rows_for(kv_heads)
    keys, values = batch.cache.write(module.layer_idx, rows, key[0].transpose(0, 1), value[0].transpose(0, 1))
    query = query[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # (T, kv_heads, sharing, D)
    scale = size**-0.5 if scaling is None else scaling
    output = batch.attend(query, keys, values, scale, sliding_window)
    return output.reshape(1, total, -1, output.shape[-1]), None


AttentionInterface.register(PAGED_ATTENTION, attend_pages)
