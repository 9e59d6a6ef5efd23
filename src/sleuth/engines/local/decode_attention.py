"""Attention of rows that write a token each, by torch's kernels and matrix products: on any device, of any type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


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


def attend_with_lse(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(b, h, n, D) queries, (b, h, L, D) keys and values -> the output and its log-sum-exp (b, h, n). `causal` needs a
    kernel."""
    if has_kernel(keys, values):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    weight = scores.logsumexp(dim=-1)
    return (scores - weight[..., None]).exp().to(values.dtype) @ values, weight


def merge(output: Tensor, weight: Tensor, other: Tensor, of_other: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two stretches of keys from that over each, by their log-sum-exps."""
    share = torch.sigmoid(of_other - weight)[..., None].to(output.dtype)
    return torch.lerp(output, other, share), torch.logaddexp(weight, of_other)


def has_kernel(keys: Tensor, values: Tensor) -> bool:
    """Whether torch has one that tells the log-sum-exp."""
    return keys.device.type == "cpu" and keys.shape[-1] == values.shape[-1]


class Windows:
    """Rows b of a batch, each with the keys from `begins[b]` up to `lengths[b]`, that one included, of `slots[b]`
    (rising), in windows.

    They are read with `biases` (slots, 1, 1, keys), 0 where a row may look and -inf where it may not. An idle slot
    between two others stands in with the row before it, and nobody looks at what comes of it: `padded` lists the rows
    of all windows and `real` picks the rows out again; both are None where no slot is idle.
    """

    def __init__(
        self, slots: np.ndarray, begins: np.ndarray, lengths: np.ndarray, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.windows = list(find_windows(slots, begins, lengths + 1))
        covered = np.concatenate([np.arange(window.slots.start, window.slots.stop) for window in self.windows])
        padded = np.searchsorted(slots, covered, side="right") - 1
        self.padded = index_of(padded, len(slots), device)
        self.real = None if self.padded is None else torch.from_numpy(np.searchsorted(covered, slots)).to(device)
        bounds = np.stack([begins, lengths])[:, padded]  # (2, slots of all windows)
        edges = np.cumsum([0, *(window.slots.stop - window.slots.start for window in self.windows)]).tolist()
        self.spans = [slice(first, stop) for first, stop in pairwise(edges)]
        self.biases = [
            _window_bias(bounds[:, span], window.keys, device, dtype)
            for span, window in zip(self.spans, self.windows, strict=True)
        ]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D] -> as query, and the
        log-sum-exp (B, kv_heads, sharing)."""
        padded = query if self.padded is None else query[self.padded]
        parts = []
        for span, window, bias in zip(self.spans, self.windows, self.biases, strict=True):
            stretch = (window.slots, slice(None), window.keys)
            parts.append(_attend(padded[span], keys[stretch], values[stretch], scale, bias))
        output, weight = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        return (output, weight) if self.real is None else (output[self.real], weight[self.real])


def index_of(rows: Sequence[int] | np.ndarray, count: int, device: torch.device) -> Tensor | None:
    """`rows` as an index, None if it would change nothing."""
    index = np.asarray(rows, dtype=np.int64)
    return None if np.array_equal(index, np.arange(count)) else torch.from_numpy(index).to(device)


def _window_bias(bounds: np.ndarray, keys: slice, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """(slots, 1, 1, keys): a row looks from its first bound (slots) to its second, that one included. None where all
    look everywhere."""
    at = np.arange(keys.start, keys.stop)
    hidden = (at < bounds[0, :, None]) | (at > bounds[1, :, None])
    if not hidden.any():
        return None
    return torch.from_numpy(np.where(hidden, -np.inf, 0.0)[:, None, None]).to(device, dtype)


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Matrix products of the whole batch: torch's kernel, made for long runs, takes a row's head by itself and gains
    nothing from a second core."""
    scores = (query @ keys.transpose(-1, -2)).float().mul_(scale)
    if bias is not None:
        scores += bias
    largest = scores.amax(dim=-1, keepdim=True)
    shares = scores.sub_(largest).exp_()
    total = shares.sum(dim=-1, keepdim=True)
    output = shares.to(values.dtype) @ values
    return output.div_(total), total.log_().add_(largest)[..., 0]


CALL = 256
"""An attention call costs as much as reading so many keys for one row: what saves less is not worth a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """`rows` of the batch have the same tokens in the stretch `keys`, which is read from `slot` for all of them.

    `Trunk(rows=[0, 1, 2], slot=5, keys=slice(0, 200))`: three siblings and their prompt.
    """

    rows: Sequence[int]
    slot: int
    keys: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Neighbouring `slots` whose own tokens, in the stretch `keys`, are read in one call."""

    slots: slice
    keys: slice


def find_trunks(tokens: np.ndarray, slots: np.ndarray, lengths: np.ndarray) -> tuple[list[list[Trunk]], np.ndarray]:
    """What rows have in common, level by level, and where each row's own tokens begin (B).

    `tokens` [slots, context]; row b has `lengths[b]` of those of `slots[b]` in the cache. A row is in at most one trunk
    of a level; the trunks of a level begin where those of the level before end.
    """
    order, common = _sorted_by_tokens(tokens[slots, : max(1, lengths.max())], lengths)
    levels: list[list[Trunk]] = []
    begins = [0] * len(slots)
    spans = [(0, len(slots), 0, 0)]  # of the sorted rows: first, stop; the depth and level reached
    while spans:
        first, stop, depth, level = spans.pop()
        inner = common[first + 1 : stop]
        shared = min(inner, default=depth)
        if len(inner) * (shared - depth) >= 2 * CALL:
            if level == len(levels):
                levels.append([])
            rows = sorted(order[first:stop])
            levels[level].append(Trunk(rows=rows, slot=int(slots[rows[0]]), keys=slice(depth, shared)))
            for row in rows:
                begins[row] = shared
            depth, level = shared, level + 1
        edges = [first, *(first + 1 + at for at, length in enumerate(inner) if length == shared), stop]
        spans += [(a, b, depth, level) for a, b in pairwise(edges) if b - a > 1]
    for level in levels:
        level.sort(key=lambda trunk: trunk.rows[0])
    return levels, np.array(begins, dtype=np.int64)


def _sorted_by_tokens(tokens: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int]]:
    """The rows in an order that brings common beginnings together, and the common length of each with the one before
    it in that order: (B), (B)."""
    keys = [row.tobytes() for row in tokens]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    tokens, lengths = tokens[order], lengths[order]
    differs = tokens[1:] != tokens[:-1]
    same = np.where(differs.any(axis=1), differs.argmax(axis=1), tokens.shape[1])
    return order, [0, *np.minimum(same, np.minimum(lengths[1:], lengths[:-1])).tolist()]


def find_windows(slots: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Iterator[Window]:
    """Windows over all of `slots` (B, rising) that read from `begins` to `ends` (B).

    Rows go together, along with the slots between them, where what is read in vain costs less than another call.
    """
    first, last, begin, end = int(slots[0]), int(slots[0]), int(begins[0]), int(ends[0])
    for slot, low, high in zip(slots[1:].tolist(), begins[1:].tolist(), ends[1:].tolist(), strict=True):
        wide = slice(min(begin, low), max(end, high))
        apart = (last + 1 - first) * (end - begin) + high - low + CALL
        if (slot + 1 - first) * (wide.stop - wide.start) > apart:
            yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
            first, wide = slot, slice(low, high)
        last, begin, end = slot, wide.start, wide.stop
    yield Window(slots=slice(first, last + 1), keys=slice(begin, end))
