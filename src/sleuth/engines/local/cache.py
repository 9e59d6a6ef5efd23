"""The KV cache: keys and values of every slot and layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from numba import prange

from sleuth.engines.local.slots import SlotPlacement
from sleuth.learn.compiled import compiled, compiled_in_parallel, is_compiled_for

INITIAL_CAPACITY = 64
"""Tokens per slot before the cache grows."""


class SlotCache:
    """Two tensors per layer, `[slots, kv_heads, capacity, head_dim]`; token p of a slot is at position p.

    `capacity` at least doubles when a longer sequence needs it, up to `context`. A layer's tensors are allocated at its
    first write, when the shapes are known.
    """

    def __init__(self, *, slots: int, context: int) -> None:
        self.slots = slots
        self.context = context
        self.capacity = min(INITIAL_CAPACITY, context)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def rows(self, slots: torch.Tensor, positions: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """Row indices (T * kv_heads), in a layer flattened over slots, heads and positions, of the tokens at
        `positions` (T) of `slots` (T)."""
        heads = slots[:, None] * kv_heads + torch.arange(kv_heads, device=slots.device)
        return (heads * self.capacity + positions[:, None]).flatten()

    def write(
        self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `keys` and `values` (T, kv_heads, head_dim) at `rows` and returns the layer's two tensors."""
        if layer not in self.layers:
            self.layers[layer] = self._empty(keys), self._empty(values)
        for tensor, new in zip(self.layers[layer], (keys, values), strict=True):
            if is_compiled_for(tensor.device, tensor.dtype):
                _write_rows(tensor.flatten(0, 2).numpy(), rows.numpy(), new.flatten(0, 1).numpy())
            else:
                tensor.flatten(0, 2).index_copy_(0, rows, new.flatten(0, 1))
        return self.layers[layer]

    def copy(self, placements: Sequence[SlotPlacement]) -> None:
        """Copies each placement's reused prefix from its source slot, in order."""
        copies = [(one.source, one.slot, one.reused) for one in placements if one.source != one.slot]
        if not copies:
            return
        for layer in self.layers.values():
            for tensor in layer:
                if is_compiled_for(tensor.device, tensor.dtype):
                    _copy(tensor.numpy(), np.array(copies))
                else:
                    for source, target, length in copies:
                        tensor[target, :, :length] = tensor[source, :, :length]

    def reserve(self, length: int, cached: np.ndarray) -> None:
        """Grows to hold sequences of `length` tokens, at most `context`; keeps the first `cached` [slots] of each."""
        if length <= self.capacity:
            return
        self.capacity = min(max(length, 2 * self.capacity), self.context)
        for index, (keys, values) in self.layers.items():
            self.layers[index] = self._grown(keys, cached), self._grown(values, cached)

    def clear(self) -> None:
        """Frees all memory."""
        self.layers.clear()
        self.capacity = min(INITIAL_CAPACITY, self.context)

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not uninitialised memory: a masked NaN is still NaN.
        shape = self.slots, like.shape[1], self.capacity, like.shape[-1]
        if like.device.type != "cpu":
            return like.new_zeros(shape)
        # Anonymous pages take no memory until they are written.
        pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, access=mmap.ACCESS_COPY)
        return torch.frombuffer(pages, dtype=like.dtype).view(shape)

    def _grown(self, tensor: torch.Tensor, cached: np.ndarray) -> torch.Tensor:
        grown = self._empty(tensor)
        for slot in np.flatnonzero(cached).tolist():
            grown[slot, :, : cached[slot]] = tensor[slot, :, : cached[slot]]
        return grown


# Element by element: for whole slices numba also compiles the error about unfit shapes, which takes seconds in
# the first run on a machine.


@compiled
def _write_rows(table, rows, new):
    """`table.index_copy_(0, rows, new)`; torch's takes five times as long for a few rows."""
    for number in range(len(rows)):
        for at in range(table.shape[1]):
            table[rows[number], at] = new[number, at]


@compiled_in_parallel
def _copy(tensor, copies):
    """Copies prefixes between slots, for each of `copies` (source, target, length) in order. Heads run in parallel, as
    page faults on fresh memory take most of the time."""
    for head in prange(tensor.shape[1]):
        for number in range(len(copies)):
            source, target = copies[number, 0], copies[number, 1]
            for token in range(copies[number, 2]):
                for at in range(tensor.shape[3]):
                    tensor[target, head, token, at] = tensor[source, head, token, at]
