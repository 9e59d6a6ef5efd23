"""Master weights: the fp32 copies that an optimiser steps when a model computes in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.learn.chunked_loss import add_gradients
from sleuth.learn.logprobs import token_logprobs, token_loss
from sleuth.learn.prefix_tree import Pack
from sleuth.learn.targets import PassFigures, TokenLoss
from sleuth.ranks import ALONE, Ranks

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """A model held whole by this process, and the tensors to step for its trainable weights.

    An RL step is often smaller than the spacing of bf16, so 16-bit weights have an fp32 master that accumulates small
    steps and is copied to the model after each. An fp32 weight is its own master; without `in_fp32` every weight is, as
    in some published runs.
    """

    ranks: Ranks = ALONE
    """The processes that hold the model together."""

    def __init__(self, model: PreTrainedModel, *, in_fp32: bool = True) -> None:
        self.module = model
        """The module that computes: the model itself."""
        self._stored = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.tensors: dict[str, Tensor] = {
            name: weight.detach().float().requires_grad_() if in_fp32 and weight.dtype in HALF else weight
            for name, weight in self._stored.items()
        }
        """Parameter name -> the tensor to step."""

    def logprobs(self, part: Pack, *, temperature: float) -> tuple[Tensor, Tensor]:
        """`token_logprobs` of the model."""
        return token_logprobs(self.module, part, temperature=temperature)

    @property
    def takes_chunks(self) -> bool:
        """Whether `add_gradients` keeps to its budget for a pack of any size."""
        return self.module.device.type == "cpu"

    def add_gradients(
        self, part: Pack, loss: TokenLoss, reference: Tensor | None, *, temperature: float, budget: int
    ) -> PassFigures:
        """Adds the gradients of the model's `token_loss` to those of `tensors`."""
        if self.takes_chunks:
            return add_gradients(
                self.module,
                part,
                loss,
                reference,
                temperature=temperature,
                budget=budget,
                collect=self.collect_gradients,
            )
        share, logprobs, entropy = token_loss(self.module, part, loss, reference, temperature=temperature)
        share.backward()
        self.collect_gradients()
        return PassFigures(loss=share.detach(), logprobs=logprobs, entropy=entropy, computed=len(part.tree))

    def set_aside(self) -> None:
        """Called before an update: nothing reads the model until `restore` or `publish`. Sharded models free its
        memory. Does nothing here."""

    def restore(self) -> None:
        """Called after a failed update: makes the model readable again, with its old weights."""

    def collect_gradients(self) -> None:
        """Moves the gradients of 16-bit weights to their masters, where micro-batches add up in fp32."""
        for name, weight in self._stored.items():
            master = self.tensors[name]
            if master is weight or weight.grad is None:
                continue
            gradient = weight.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def discard_gradients(self) -> None:
        """Sets all gradients to None, of masters and of the model."""
        for tensor in (*self._stored.values(), *self.tensors.values()):
            tensor.grad = None

    def gradient(self) -> Tensor:
        """All gradients as one vector; zeros for tensors without one."""
        weights = self.tensors.values()
        parts = [(torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in weights]
        return torch.cat(parts)

    def clip_gradients(self, max_norm: float) -> float:
        """Scales the gradients down to a global 2-norm of at most `max_norm`. Returns the norm before."""
        return torch.nn.utils.clip_grad_norm_(self.tensors.values(), max_norm).item()

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the masters to the model, in its dtype."""
        for name, weight in self._stored.items():
            if self.tensors[name] is not weight:
                weight.copy_(self.tensors[name])

    @property
    def state_bytes(self) -> int:
        """The size of `state_dict`."""
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if tensor is not self._stored[name])

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of an optimiser of `tensors`, unsharded."""
        return state

    def shard_state(self, state: Mapping[str, Any], stepped: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Any]:
        """The inverse of `gather_state`; `stepped` are the optimiser's tensors by part, in the order of its state's
        indices."""
        return state

    def state_dict(self) -> dict[str, Tensor]:
        """The masters of 16-bit weights; fp32 weights are complete in the model's own files."""
        return {name: tensor.detach() for name, tensor in self.tensors.items() if tensor is not self._stored[name]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores saved masters and copies them to the model."""
        for name in self.state_dict():
            self.tensors[name].copy_(state[name])
            self._stored[name].copy_(self.tensors[name])


Holding = Callable[..., MasterWeights]
"""(model, in_fp32=bool) -> its `MasterWeights` or a subclass: whole, or sharded over ranks."""
