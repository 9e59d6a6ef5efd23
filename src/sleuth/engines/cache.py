"""The keys and values of every slot, layer by layer."""

from __future__ import annotations

import torch

FIRST_CAPACITY = 64
"""Tokens a slot holds before it grows."""


class SlotCache:
    """Two tensors a layer, `[slots, kv_heads, capacity, head_dim]`; token p of a slot lies at position p.

    Capacity doubles when a longer sequence asks for it, up to `context`. A layer's tensors are made at its first write,
    when its shapes are known.
    """

    def __init__(self, *, slots: int, context: int) -> None:
        self.slots = slots
        self.context = context
        self.capacity = min(FIRST_CAPACITY, context)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put `keys` and `values` (T, kv_heads, head_dim) at `slots` (T) and `positions` (T); the layer's tensors."""
        if layer not in self.layers:
            self.layers[layer] = self._empty(keys), self._empty(values)
        layer_keys, layer_values = self.layers[layer]
        layer_keys[slots, :, positions] = keys
        layer_values[slots, :, positions] = values
        return layer_keys, layer_values

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` tokens of slot `source`."""
        for layer in self.layers.values():
            for tensor in layer:
                tensor[target, :, :length] = tensor[source, :, :length]

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens, at most `context`."""
        if length <= self.capacity:
            return
        while self.capacity < length:
            self.capacity = min(2 * self.capacity, self.context)
        for index, (keys, values) in self.layers.items():
            self.layers[index] = self._grown(keys), self._grown(values)

    def clear(self) -> None:
        """Give all memory back."""
        self.layers.clear()
        self.capacity = min(FIRST_CAPACITY, self.context)

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not whatever memory held: a masked NaN would still be NaN.
        return like.new_zeros(self.slots, like.shape[1], self.capacity, like.shape[2])

    def _grown(self, tensor: torch.Tensor) -> torch.Tensor:
        grown = self._empty(tensor[0].transpose(0, 1))
        grown[:, :, : tensor.shape[2]] = tensor
        return grown
