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

from sleuth.engines.cache import SlotCache
from sleuth.engines.own_keys import OwnKeys, is_compiled_for
from sleuth.engines.plan import Trunk, find_trunks
from sleuth.engines.slots import Run
from sleuth.engines.windows import Windows, index_of
from sleuth.types import SleuthError

SLOT_ATTENTION = "sleuth_slots"
"""The name under which transformers knows `attend_slots`."""


class Batch:
    """The tokens of one forward, laid end to end as a sequence of T: a token for each of `writing` (slots, rising),
    then the tokens of each run. `tokens` [slots, context] and `read` [slots] are those of the slot table. `wanted` are
    those after which the next is sampled, None: all of them, or nearly so."""

    wanted: Tensor | None = None

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
        self.writers = Writers(tokens, writing, read[writing], device, dtype) if len(writing) else None

    def narrowed(self) -> Batch:
        """For the last layer: of a run only the last token looks at others."""
        narrow = copy.copy(self)
        narrow.ends_alone = True
        return narrow


class Writers:
    """How slots that write a token each read their keys: `lengths` (B) are in the cache, the token itself comes next.

    `levels` are what rows share, `rows` (M) those of a level, None where they are all rows in order. `own` are the keys
    of each row alone.
    """

    def __init__(
        self, tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.levels, begins = find_trunks(tokens, slots, lengths)
        self.rows = [
            index_of([row for trunk in level for row in trunk.rows], len(slots), device) for level in self.levels
        ]
        self.own = (
            OwnKeys(slots, begins, lengths)
            if is_compiled_for(device, dtype)
            else Windows(slots, begins, lengths, device, dtype)
        )


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
    if batch.writers is not None:
        parts.append(_write(query[: batch.count], keys, values, batch.writers, scale))
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
    if not _has_kernel(keys, values):
        bias = causal_lower_right(query.shape[2], keys.shape[2])
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
        return output.permute(2, 0, 1, 3)
    output, weight = _attend(query, keys[:, :, start:], values[:, :, start:], scale, causal=True)
    if start:
        output, _ = _merge(output, weight, *_attend(query, keys[:, :, :start], values[:, :, :start], scale))
    return output.permute(2, 0, 1, 3)


def _write(query: Tensor, keys: Tensor, values: Tensor, writers: Writers, scale: float) -> Tensor:
    """A token a row: `query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D] -> as query.

    Each row's own keys first; then, level by level, what it shares is merged in.
    """
    output, weight = writers.own.attend(query, keys, values, scale)
    for trunks, rows in zip(writers.levels, writers.rows, strict=True):
        if rows is None:
            output, weight = _merge(output, weight, *_attend_trunks(query, trunks, keys, values, scale))
        else:
            shared = _attend_trunks(query[rows], trunks, keys, values, scale)
            output[rows], weight[rows] = _merge(output[rows], weight[rows], *shared)
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
        parts.append(_attend(folded[:, :, first:stop], keys[stretch], values[stretch], scale))
        first = stop
    output, weight = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    shape = (kv_heads, count, sharing)
    return output.view(*shape, -1).transpose(0, 1), weight.view(shape).transpose(0, 1)


def _merge(output: Tensor, weight: Tensor, other: Tensor, of_other: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two stretches of keys from that over each, by their log-sum-exps."""
    share = torch.sigmoid(of_other - weight)[..., None].to(output.dtype)
    return torch.lerp(output, other, share), torch.logaddexp(weight, of_other)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(b, h, n, D) queries, (b, h, L, D) keys and values -> the output and its log-sum-exp (b, h, n)."""
    if _has_kernel(keys, values):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    weight = scores.logsumexp(dim=-1)
    return (scores - weight[..., None]).exp().to(values.dtype) @ values, weight


def _has_kernel(keys: Tensor, values: Tensor) -> bool:
    """Whether there is one that tells the log-sum-exp."""
    return keys.device.type == "cpu" and keys.shape[-1] == values.shape[-1]


AttentionInterface.register(SLOT_ATTENTION, attend_slots)
