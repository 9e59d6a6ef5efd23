"""The weights of linear layers, laid out in memory as a processor multiplies a few rows by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sleuth.learn.products import HAS_ONEDNN, by_onednn, replaced_forwards

LEAST_PACKED = 2**17
"""Numbers of a weight. Packed as oneDNN wants them, larger ones multiply tens of rows in two thirds of the time or a
little more; smaller ones are transposed for torch's own product."""

ROWS = 64
"""For about so many the weights are packed."""

SIZES = 8
"""Numbers of rows that are told apart between a power of two and the next. oneDNN builds code for each that it meets,
which takes as long as several products: the others are padded."""


SAME_INPUTS = ("q_proj", "k_proj", "v_proj")
"""Layers of one module that are multiplied together. (In a last layer that spares queries their inputs differ, and
products are made in vain: one layer's, when prompts are read.)"""

Product = Callable[[Tensor], Tensor]


class DecodeWeights:
    """A copy of the weight of every linear layer of `model`, packed or transposed, made when first needed.

    Laying out a weight costs as much as multiplying tens of rows by it, and a writing engine has no more. On other
    devices than a CPU, and for other types than fp32, there is nothing to gain, and nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._forwards: list[tuple[nn.Linear, Product]] | None = None

    def forget(self) -> None:
        """The model's weights have changed."""
        self._forwards = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The layers multiply by the copies instead of their own weights, which stay as they are. No gradient is
        kept."""
        if self._forwards is None:
            self._forwards = list(_forwards(self.model))
        with replaced_forwards(self._forwards):
            yield


class _Together:
    """Layers that are given the same inputs one after another: the first multiplies for all of them."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
        bias = None if all(layer.bias is None for layer in layers) else torch.cat(biases)
        self.product = _product(torch.cat([layer.weight for layer in layers]), bias)
        self.widths = [len(layer.weight) for layer in layers]
        self.inputs: Tensor | None = None
        self.outputs: Sequence[Tensor] = ()

    def multiply(self, inputs: Tensor, *, number: int) -> Tensor:
        """What the layer of that number makes of its inputs."""
        if inputs is not self.inputs:
            self.inputs, self.outputs = inputs, self.product(inputs).split(self.widths, dim=-1)
        output = self.outputs[number]
        if number == len(self.widths) - 1:
            self.inputs, self.outputs = None, ()
        return output


def _forwards(model: nn.Module) -> Iterator[tuple[nn.Linear, Product]]:
    together: set[nn.Module] = set()
    for module in model.modules():
        layers = [layer for name in SAME_INPUTS if _is_copied(layer := getattr(module, name, None))]
        if len(layers) == len(SAME_INPUTS):
            joined = _Together(layers)
            yield from ((layer, partial(joined.multiply, number=number)) for number, layer in enumerate(layers))
            together.update(layers)
        elif _is_copied(module) and module not in together:
            yield module, _product(module.weight, module.bias)


def _is_copied(layer: object) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    """By a copy of the weight."""
    weight = weight.detach()
    if HAS_ONEDNN and weight.numel() >= LEAST_PACKED:
        return partial(_by_packed, weight=torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias=bias)
    return partial(F.linear, weight=weight.t().contiguous().t(), bias=bias)


def _by_packed(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(1, T, n) -> (1, T, m)."""
    rows = inputs.shape[1]
    if missing := -rows % max(1, (1 << rows.bit_length() - 1) // SIZES):
        inputs = F.pad(inputs, (0, 0, 0, missing))
    return by_onednn(inputs, weight, bias)[:, :rows]
