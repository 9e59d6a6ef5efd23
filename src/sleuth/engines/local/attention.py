"""Attention over the slots: a forward reads ragged rows laid end to end as one sequence, with no padding.

Everything in a causal model but attention looks at one token at a time, so the rows of a batch need no common length
there. Attention is done here: who writes a token reads the keys of its slot, together with others and what siblings
share only once; who reads a run of tokens has a call of its own.
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
from sleuth.engines.local.decode_attention import DecodeAttention, attend_with_lse, find_trunks, has_kernel, merge
from sleuth.engines.local.slots import Run
from sleuth.learn.compiled import is_compiled_for
from sleuth.types import SleuthError

SLOT_ATTENTION = "sleuth_slots"
"""The name under which transformers knows `attend_slots`."""


class Batch:
    """The tokens of one forward, laid end to end as a sequence of T: a token for each of `writing` (slots, rising),
    then the tokens of each run. `tokens` [slots, context] and `read` [slots] are those of the slot table.
    `output_indices` are those after which the next is sampled, None: all of them, or nearly so."""

    output_indices: Tensor | None = None

    def __init__(
        self,
        tokens: np.ndarray,
        read: np.ndarray,
        writing: np.ndarray,
        runs: Sequence[Run],
        cache: SlotCache,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.cache = cache
        self.runs = runs
        self.ends_alone = False
        self.count = len(writing)
        lengths = [run.stop - run.start for run in runs]
        slots = np.concatenate([writing, np.repeat([run.slot for run in runs], lengths).astype(np.int64)])
        positions = np.concatenate([read[writing], *(np.arange(run.start, run.stop) for run in runs)])
        told = torch.from_numpy(np.stack([tokens[slots, positions], slots, positions])).to(device)
        self.tokens, self.slots, self.positions = told  # (T) each
        self.places: Tensor | None = None  # of the tokens' keys in the cache, known once its heads are
        self.ends = len(writing) + np.cumsum(lengths, dtype=np.int64)  # of the runs
        self.decode = _decode_attention(tokens, writing, read[writing], device, dtype) if len(writing) else None

    def for_last_layer(self) -> Batch:
        """For the last layer: of a run only the last token looks at others."""
        narrow = copy.copy(self)
        narrow.ends_alone = True
        return narrow


def _decode_attention(
    tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray, device: torch.device, dtype: torch.dtype
) -> CompiledDecodeAttention | DecodeAttention:
    levels, begins = find_trunks(tokens, slots, lengths)
    if is_compiled_for(device, dtype):
        return CompiledDecodeAttention(slots, begins, lengths, levels)
    return DecodeAttention(slots, begins, lengths, levels, device, dtype)


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

    `query` (1, H, T, D), `key` and `value` (1, kv_heads, T, D) of the new tokens -> (1, T, H, D). They are written to
    the slots first.
    """
    if any(options.get(name) is not None for name in ("sliding_window", "softcap", "s_aux")):
        raise SleuthError(f"the local engine has no sliding windows, soft caps or sinks: {type(module).__name__}")
    _, kv_heads, total, size = key.shape
    if batch.places is None:
        batch.places = batch.cache.places(batch.slots, batch.positions, kv_heads)
    keys, values = batch.cache.write(module.layer_idx, batch.places, key[0].transpose(0, 1), value[0].transpose(0, 1))
    query = query[0].transpose(0, 1).unflatten(1, (kv_heads, -1))  # (T, kv_heads, sharing, D)
    scale = size**-0.5 if scaling is None else scaling
    parts = []
    if batch.decode is not None:
        parts.append(batch.decode.attend(query[: batch.count], keys, values, scale))
    for run, end in zip(batch.runs, batch.ends.tolist(), strict=True):
        start = run.stop - 1 if batch.ends_alone else run.start
        if start > run.start:
            parts.append(query.new_zeros(start - run.start, *query.shape[1:]))
        of_run = query[end - (run.stop - start) : end]
        parts.append(_read(of_run, keys[run.slot, :, : run.stop], values[run.slot, :, : run.stop], start, scale))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.reshape(1, total, -1, output.shape[-1]), None


def _read(query: Tensor, keys: Tensor, values: Tensor, start: int, scale: float) -> Tensor:
    """A run of tokens, the first of them at position `start`: `query` (n, kv_heads, sharing, D), `keys` and `values`
    (kv_heads, L, D) -> as query."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in (keys, values))
    if not has_kernel(keys, values):
        bias = causal_lower_right(query.shape[2], keys.shape[2])
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
        return output.permute(2, 0, 1, 3)
    output, weight = attend_with_lse(query, keys[:, :, start:], values[:, :, start:], scale, causal=True)
    if start:
        output, _ = merge(output, weight, *attend_with_lse(query, keys[:, :, :start], values[:, :, :start], scale))
    return output.permute(2, 0, 1, 3)


AttentionInterface.register(SLOT_ATTENTION, attend_slots)
