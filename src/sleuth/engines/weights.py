"""The weights of linear layers, laid out in memory as a processor multiplies a few rows by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

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


class WritingWeights:
    """A copy of the weight of every linear layer of `model`, packed or transposed, made when first needed.

    Laying out a weight costs as much as multiplying tens of rows by it, and a writing engine has no more. On other
    devices than a CPU, and for other types than fp32, there is nothing to gain, and nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._copies: list[tuple[nn.Linear, Tensor]] | None = None

    def forget(self) -> None:
        """The model's weights have changed."""
        self._copies = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The layers multiply by the copies instead of their own weights, which stay as they are. No gradient is
        kept."""
        if self._copies is None:
            self._copies = list(_copies(self.model))
        with replaced_forwards((layer, _product(weight, layer.bias)) for layer, weight in self._copies):
            yield


def _copies(model: nn.Module) -> Iterator[tuple[nn.Linear, Tensor]]:
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32:
            weight = layer.weight.detach()
            packed = HAS_ONEDNN and weight.numel() >= LEAST_PACKED
            yield (
                layer,
                torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if packed else weight.t().contiguous().t(),
            )


def _product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return partial(_by_packed if weight.is_mkldnn else F.linear, weight=weight, bias=bias)


def _by_packed(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(1, T, n) -> (1, T, m)."""
    rows = inputs.shape[1]
    if missing := -rows % max(1, (1 << rows.bit_length() - 1) // SIZES):
        inputs = F.pad(inputs, (0, 0, 0, missing))
    return by_onednn(inputs, weight, bias)[:, :rows]
