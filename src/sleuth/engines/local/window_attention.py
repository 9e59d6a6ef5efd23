"""Attention of rows that write a token each, over the keys of their own: in windows of slots, by matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.local.attention_plan import find_windows


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
