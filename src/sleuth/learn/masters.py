"""Master weights: what an optimiser steps when a model computes in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
BITS_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the integer type that shows its bits."""


class MasterWeights:
    """The weights that are stepped, in fp32. A step of RL is often smaller than the spacing of bf16, so bf16 weights
    keep a master that adds the small steps up; it is copied down after each. An fp32 weight is its own master; without
    `in_fp32` every weight is, as in some published runs."""

    def __init__(self, model: nn.Module, *, in_fp32: bool = True) -> None:
        self._stored = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.tensors: dict[str, Tensor] = {
            name: weight.detach().float().requires_grad_() if in_fp32 and weight.dtype in HALF else weight
            for name, weight in self._stored.items()
        }
        """Parameter name -> the tensor to step, in fp32 where that is asked for."""

    def collect_gradients(self) -> None:
        """Move the gradients of 16-bit weights to their masters; over micro-batches they add up in fp32."""
        for name, weight in self._stored.items():
            master = self.tensors[name]
            if master is weight or weight.grad is None:
                continue
            gradient = weight.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def discard_gradients(self) -> None:
        """Forget all gradients, of masters and of the weights they stand for."""
        for tensor in (*self._stored.values(), *self.tensors.values()):
            tensor.grad = None

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of the weights that a step will change in place, for `publish` to compare with."""
        return {name: weight.detach().clone() for name, weight in self._stored.items() if self.tensors[name] is weight}

    @torch.no_grad()
    def publish(self, before: Mapping[str, Tensor]) -> float:
        """Copy the masters down, and tell the share of stored elements whose bits this changed since `before`."""
        changed = 0
        for name, weight in self._stored.items():
            new = self.tensors[name].detach().to(weight.dtype)
            bits = BITS_OF[weight.element_size()]
            changed += (new.view(bits) != before.get(name, weight).view(bits)).sum()
            if self.tensors[name] is not weight:
                weight.copy_(new)
        return float(changed) / sum(weight.numel() for weight in self._stored.values())

    def state_dict(self) -> dict[str, Tensor]:
        """The masters of 16-bit weights; fp32 weights are whole in the model's own files."""
        return {name: tensor.detach() for name, tensor in self.tensors.items() if tensor is not self._stored[name]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved masters, and copy them down."""
        for name in self.state_dict():
            self.tensors[name].copy_(state[name])
            self._stored[name].copy_(self.tensors[name])
