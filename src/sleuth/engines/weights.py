"""The weights of linear layers, laid out in memory as a processor multiplies a few rows by them without packing them
first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class TurnedWeights:
    """A copy of the weight of every linear layer of `model`, transposed in memory, made when first needed.

    Packing a weight costs as much as multiplying tens of rows by it, and a writing engine has no more. On other devices
    than a CPU, and for other types than fp32, there is nothing to gain, and nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._turned: list[tuple[nn.Linear, torch.Tensor]] | None = None

    def forget(self) -> None:
        """The model's weights have changed."""
        self._turned = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The layers with these weights in front of their own, which stay as they are."""
        if self._turned is None:
            self._turned = [
                (layer, layer.weight.detach().t().contiguous().t())
                for layer in self.model.modules()
                if type(layer) is nn.Linear
                and layer.weight.device.type == "cpu"
                and layer.weight.dtype == torch.float32
            ]
        try:
            for layer, weight in self._turned:
                layer.__dict__["weight"] = weight
            yield
        finally:
            for layer, _ in self._turned:
                layer.__dict__.pop("weight", None)
