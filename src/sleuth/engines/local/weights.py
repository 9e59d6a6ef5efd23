"""Copies of linear layers' weights in a memory layout that is fast on CPUs for few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sleuth.kernels.matmul import HAS_ONEDNN, by_onednn, replaced_forwards

MIN_PACKED = 2**17
"""Weights of at least this many elements are packed for oneDNN, which takes about two thirds of the time for tens of
rows; smaller ones are transposed for torch's own product."""

ROWS = 64
"""The number of rows that weights are packed for."""

SIZES_PER_OCTAVE = 8
"""Row counts are padded to this many sizes between a power of two and the next: oneDNN compiles code for each size,
which takes as long as several products."""


JOINT_LAYERS = ("q_proj", "k_proj", "v_proj")
"""Layers of one module that are computed in one product. (Where the last layer skips queries their inputs differ, and
part of the product is unused: one layer's, during prefill.)"""

Product = Callable[[Tensor], Tensor]


class DecodeWeights:
    """Packed or transposed copies of the weights of all linear layers of `model`, made when first needed.

    Packing a weight costs as much as multiplying tens of rows by it, so it is done once per update. Only fp32 weights
    on a CPU are copied; nothing else gains.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._forwards: list[tuple[nn.Linear, Product]] | None = None

    def clear(self) -> None:
        """Drops the copies. Call when the model's weights have changed."""
        self._forwards = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While entered, the layers use the copies instead of their own weights. For inference only."""
        if self._forwards is None:
            self._forwards = list(_forwards(self.model))
        with replaced_forwards(self._forwards):
            yield


class _JointProduct:
    """Layers called one after another with the same inputs: the first call computes the outputs of all of them."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
        bias = None if all(layer.bias is None for layer in layers) else torch.cat(biases)
        self.product = _product(torch.cat([layer.weight for layer in layers]), bias)
        self.widths = [len(layer.weight) for layer in layers]
        self.inputs: Tensor | None = None
        self.outputs: Sequence[Tensor] = ()

    def multiply(self, inputs: Tensor, *, number: int) -> Tensor:
        """The output of layer `number`."""
        if inputs is not self.inputs:
            self.inputs, self.outputs = inputs, self.product(inputs).split(self.widths, dim=-1)
        output = self.outputs[number]
        if number == len(self.widths) - 1:
            self.inputs, self.outputs = None, ()
        return output


def _forwards(model: nn.Module) -> Iterator[tuple[nn.Linear, Product]]:
    joint: set[nn.Module] = set()
    for module in model.modules():
        layers = [layer for name in JOINT_LAYERS if _is_copied(layer := getattr(module, name, None))]
        if len(layers) == len(JOINT_LAYERS):
            joined = _JointProduct(layers)
            yield from ((layer, partial(joined.multiply, number=number)) for number, layer in enumerate(layers))
            joint.update(layers)
        elif _is_copied(module) and module not in joint:
            yield module, _product(module.weight, module.bias)


def _is_copied(layer: object) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    weight = weight.detach()
    if HAS_ONEDNN and weight.numel() >= MIN_PACKED:
        return partial(_by_packed, weight=torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias=bias)
    return partial(F.linear, weight=weight.t().contiguous().t(), bias=bias)


def _by_packed(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(1, T, n) -> (1, T, m)."""
    rows = inputs.shape[1]
    if not rows:  # of a forward that ends no prompt, the head
        return inputs.new_zeros(1, 0, weight.shape[0])
    if missing := -rows % max(1, (1 << rows.bit_length() - 1) // SIZES_PER_OCTAVE):
        inputs = F.pad(inputs, (0, 0, 0, missing))
    return by_onednn(inputs, weight, bias)[:, :rows]
