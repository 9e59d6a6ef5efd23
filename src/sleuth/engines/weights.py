"""The weights of linear layers, packed as oneDNN multiplies a few rows by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sleuth.learn.products import HAS_ONEDNN

LEAST_WORK = 2**20
"""Multiplications of a product; with fewer, torch's own is as fast."""

ROWS = 64
"""For about so many the weights are packed."""

SIZES = 8
"""Numbers of rows that are told apart between a power of two and the next. oneDNN builds code for each that it meets,
which takes as long as several products: the others are padded."""


class PackedWeights:
    """A packed copy of the weight of every linear layer of `model`, made when first needed.

    Packing a weight costs as much as multiplying tens of rows by it, and a writing engine has no more. For other types
    than fp32, and where oneDNN is not at hand, nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._packed: list[tuple[nn.Linear, Tensor]] | None = None

    def forget(self) -> None:
        """The model's weights have changed."""
        self._packed = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The layers multiply by these weights instead of their own, which stay as they are. No gradient is kept."""
        if self._packed is None:
            self._packed = list(_pack(self.model)) if HAS_ONEDNN else []
        with ExitStack() as undone:
            for layer, weight in self._packed:
                layer.__dict__["forward"] = partial(_forward, layer, weight)
                undone.callback(layer.__dict__.pop, "forward")
            yield


def _pack(model: nn.Module) -> Iterator[tuple[nn.Linear, Tensor]]:
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32:
            yield layer, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)


def _forward(layer: nn.Linear, packed: Tensor, inputs: Tensor) -> Tensor:
    """(1, T, n) -> (1, T, m)."""
    rows = inputs.shape[1]
    if rows * layer.weight.numel() < LEAST_WORK:
        return F.linear(inputs, layer.weight, layer.bias)
    if missing := -rows % max(1, (1 << rows.bit_length() - 1) // SIZES):
        inputs = F.pad(inputs, (0, 0, 0, missing))
    return torch.ops.mkldnn._linear_pointwise(inputs, packed, layer.bias, "none", [], "")[:, :rows]
