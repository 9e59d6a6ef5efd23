"""Decode attention (one query per row) in torch, for any device and dtype, and the key spans that rows share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


class DecodeAttention:
    """Attention of one new token per slot: row b has `lengths[b]` keys in the cache before its own.

    `levels` are the shared spans, `rows` (M) the rows of each level, None if they are all rows in order. `own` covers
    the keys that each row reads alone, from `starts` (B) on.
    """

    def __init__(
        self,
        slots: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        levels: Sequence[Sequence[SharedSpan]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.levels = levels
        self.rows = [index_of([row for span in level for row in span.rows], len(slots), device) for level in levels]
        self.own = Windows(slots, starts, lengths, device, dtype)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D] -> as query.

        Attends to each row's own keys, then merges in the shared spans level by level.
        """
        output, lse = self.own.attend(query, keys, values, scale)
        for spans, rows in zip(self.levels, self.rows, strict=True):
            if rows is None:
                output, lse = merge(output, lse, *_attend_spans(query, spans, keys, values, scale))
            else:
                shared = _attend_spans(query[rows], spans, keys, values, scale)
                merged, merged_lse = merge(output[rows], lse[rows], *shared)
                output[rows], lse[rows] = merged, merged_lse.to(lse.dtype)
        return output


def _attend_spans(
    query: Tensor, spans: Sequence[SharedSpan], keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(M, kv_heads, sharing, D) -> the same and its log-sum-exp (M, kv_heads, sharing). The queries of all rows and
    heads that share a span of keys are folded into one head."""
    count, kv_heads, sharing, _ = query.shape
    folded = query.transpose(0, 1).reshape(1, kv_heads, count * sharing, -1)
    parts, first = [], 0
    for span in spans:
        stop = first + len(span.rows) * sharing
        region = (slice(span.slot, span.slot + 1), slice(None), span.keys)
        parts.append(attend_with_lse(folded[:, :, first:stop], keys[region], values[region], scale))
        first = stop
    output, lse = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    shape = (kv_heads, count, sharing)
    return output.view(*shape, -1).transpose(0, 1), lse.view(shape).transpose(0, 1)


def attend_with_lse(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(b, h, n, D) queries, (b, h, L, D) keys, values -> output, log-sum-exp (b, h, n). `causal` needs `has_kernel`."""
    if has_kernel(keys, values):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    lse = scores.logsumexp(dim=-1)
    return (scores - lse[..., None]).exp().to(values.dtype) @ values, lse


def merge(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two key spans from the outputs and log-sum-exps over each."""
    share = torch.sigmoid(other_lse - lse)[..., None].to(output.dtype)
    return torch.lerp(output, other, share), torch.logaddexp(lse, other_lse)


def has_kernel(keys: Tensor, values: Tensor) -> bool:
    """Whether torch has an attention kernel that returns the log-sum-exp."""
    return keys.device.type == "cpu" and keys.shape[-1] == values.shape[-1]


class Windows:
    """Attention of row b to the keys `starts[b]` to `lengths[b]`, inclusive, of `slots[b]` (rising), in windows.

    `biases` (slots, 1, 1, keys) are 0 where a row may attend and -inf elsewhere. An idle slot inside a window gets the
    query of the row before it, and its output is dropped: `padded` lists the rows of all windows and `real` selects the
    rows from them; both are None if no slot is idle.
    """

    def __init__(
        self, slots: np.ndarray, starts: np.ndarray, lengths: np.ndarray, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.windows = list(find_windows(slots, starts, lengths + 1))
        covered = np.concatenate([np.arange(window.slots.start, window.slots.stop) for window in self.windows])
        padded = np.searchsorted(slots, covered, side="right") - 1
        self.padded = index_of(padded, len(slots), device)
        self.real = None if self.padded is None else torch.from_numpy(np.searchsorted(covered, slots)).to(device)
        bounds = np.stack([starts, lengths])[:, padded]  # (2, slots of all windows)
        edges = np.cumsum([0, *(window.slots.stop - window.slots.start for window in self.windows)]).tolist()
        self.slices = [slice(first, stop) for first, stop in pairwise(edges)]
        self.biases = [
            _window_bias(bounds[:, rows], window.keys, device, dtype)
            for rows, window in zip(self.slices, self.windows, strict=True)
        ]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D] -> as query, and the
        log-sum-exp (B, kv_heads, sharing)."""
        padded = query if self.padded is None else query[self.padded]
        parts = []
        for rows, window, bias in zip(self.slices, self.windows, self.biases, strict=True):
            region = (window.slots, slice(None), window.keys)
            parts.append(_attend_window(padded[rows], keys[region], values[region], scale, bias))
        output, lse = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        return (output, lse) if self.real is None else (output[self.real], lse[self.real])


def index_of(rows: Sequence[int] | np.ndarray, count: int, device: torch.device) -> Tensor | None:
    """`rows` as an index tensor; None if it is the identity over `count` rows."""
    index = np.asarray(rows, dtype=np.int64)
    return None if np.array_equal(index, np.arange(count)) else torch.from_numpy(index).to(device)


def _window_bias(bounds: np.ndarray, keys: slice, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """(slots, 1, 1, keys): a row attends between its `bounds` (2, slots), inclusive. None if nothing is masked."""
    at = np.arange(keys.start, keys.stop)
    hidden = (at < bounds[0, :, None]) | (at > bounds[1, :, None])
    if not hidden.any():
        return None
    return torch.from_numpy(np.where(hidden, -np.inf, 0.0)[:, None, None]).to(device, dtype)


def _attend_window(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention by batched matrix products: torch's kernel, made for many queries, would take each row and head by
    itself and gain nothing from a second core."""
    scores = (query @ keys.transpose(-1, -2)).float().mul_(scale)
    if bias is not None:
        scores += bias
    largest = scores.amax(dim=-1, keepdim=True)
    shares = scores.sub_(largest).exp_()
    total = shares.sum(dim=-1, keepdim=True)
    output = shares.to(values.dtype) @ values
    return output.div_(total), total.log_().add_(largest)[..., 0]


CALL_COST = 256
"""An attention call costs as much as reading this many keys for one row; spans that save less are not shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpan:
    """`rows` of the batch have the same tokens in the span `keys`, which is read from `slot` for all of them.

    `SharedSpan(rows=[0, 1, 2], slot=5, keys=slice(0, 200))`: three siblings and their prompt.
    """

    rows: Sequence[int]
    slot: int
    keys: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Neighbouring `slots` whose own tokens, in the span `keys`, are read in one call."""

    slots: slice
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
        if len(inner) * (shared - depth) >= 2 * CALL_COST:
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


def find_windows(slots: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Iterator[Window]:
    """Windows over all of `slots` (B, rising) that read from `starts` to `ends` (B).

    Rows are joined, along with the slots between them, if the unneeded keys cost less than another call.
    """
    first, last, begin, end = int(slots[0]), int(slots[0]), int(starts[0]), int(ends[0])
    for slot, low, high in zip(slots[1:].tolist(), starts[1:].tolist(), ends[1:].tolist(), strict=True):
        wide = slice(min(begin, low), max(end, high))
        apart = (last + 1 - first) * (end - begin) + high - low + CALL_COST
        if (slot + 1 - first) * (wide.stop - wide.start) > apart:
            yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
            first, wide = slot, slice(low, high)
        last, begin, end = slot, wide.start, wide.stop
    yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
