"""The keys and values of every slot, layer by layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from numba import prange

from sleuth.engines.local.slots import SlotPlacement
from sleuth.learn.compiled import compiled, compiled_in_parallel, is_compiled_for

FIRST_CAPACITY = 64
"""Tokens a slot holds before it grows."""


class SlotCache:
    """Two tensors a layer, `[slots, kv_heads, capacity, head_dim]`; token p of a slot lies at position p.

    Capacity doubles at least when a longer sequence asks for it, up to `context`. A layer's tensors are made at its
    first write, when its shapes are known.
    """

    def __init__(self, *, slots: int, context: int) -> None:
        self.slots = slots
        self.context = context
        self.capacity = min(FIRST_CAPACITY, context)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def places(self, slots: torch.Tensor, positions: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """Where the tokens at `positions` (T) of `slots` (T) lie in a layer of which slots, heads and positions are
        laid end to end: (T * kv_heads)."""
        heads = slots[:, None] * kv_heads + torch.arange(kv_heads, device=slots.device)
        return (heads * self.capacity + positions[:, None]).flatten()

    def write(
        self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put `keys` and `values` (T, kv_heads, head_dim) at their `places`; the layer's tensors."""
        if layer not in self.layers:
            self.layers[layer] = self._empty(keys), self._empty(values)
        for tensor, new in zip(self.layers[layer], (keys, values), strict=True):
            if is_compiled_for(tensor.device, tensor.dtype):
                _put(tensor.flatten(0, 2).numpy(), places.numpy(), new.flatten(0, 1).numpy())
            else:
                tensor.flatten(0, 2).index_copy_(0, places, new.flatten(0, 1))
        return self.layers[layer]

    def copy(self, places: Sequence[SlotPlacement]) -> None:
        """Give each slot what it reuses of its source, one after another."""
        told = [(place.source, place.slot, place.reused) for place in places if place.source != place.slot]
        if not told:
            return
        for layer in self.layers.values():
            for tensor in layer:
                if is_compiled_for(tensor.device, tensor.dtype):
                    _copy(tensor.numpy(), np.array(told))
                else:
                    for source, target, length in told:
                        tensor[target, :, :length] = tensor[source, :, :length]

    def reserve(self, length: int, read: np.ndarray) -> None:
        """Make room for sequences of `length` tokens, at most `context`, and keep the first `read` [slots] of each
        slot."""
        if length <= self.capacity:
            return
        self.capacity = min(max(length, 2 * self.capacity), self.context)
        for index, (keys, values) in self.layers.items():
            self.layers[index] = self._grown(keys, read), self._grown(values, read)

    def clear(self) -> None:
        """Give all memory back."""
        self.layers.clear()
        self.capacity = min(FIRST_CAPACITY, self.context)

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not whatever memory held: a masked NaN would still be NaN.
        shape = self.slots, like.shape[1], self.capacity, like.shape[-1]
        if like.device.type != "cpu":
            return like.new_zeros(shape)
        # The system's own zeros take no memory before they are written over.
        pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, access=mmap.ACCESS_COPY)
        return torch.frombuffer(pages, dtype=like.dtype).view(shape)

    def _grown(self, tensor: torch.Tensor, read: np.ndarray) -> torch.Tensor:
        grown = self._empty(tensor)
        for slot in np.flatnonzero(read).tolist():
            grown[slot, :, : read[slot]] = tensor[slot, :, : read[slot]]
        return grown


# Number by number: where whole slices are assigned, numba also compiles the message about shapes that do not fit, which
# takes it seconds at the first run on a machine.


@compiled
def _put(rows, places, new):
    """torch's `index_copy_`, which takes five times as long for a few rows."""
    for number in range(len(places)):
        for at in range(rows.shape[1]):
            rows[places[number], at] = new[number, at]


@compiled_in_parallel
def _copy(tensor, places):
    """The first tokens of one slot to another, for each of `places` (source, target, length) in their order. Memory
    that was never touched is waited for, which heads do side by side."""
    for head in prange(tensor.shape[1]):
        for number in range(len(places)):
            source, target = places[number, 0], places[number, 1]
            for token in range(places[number, 2]):
                for at in range(tensor.shape[3]):
                    tensor[target, head, token, at] = tensor[source, head, token, at]
