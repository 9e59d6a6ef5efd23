"""Master weights: what an optimiser steps when a model computes in 16 bits."""

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
    """A model that this process holds whole, and the weights of it that are stepped, in fp32. A step of RL is often
    smaller than the spacing of bf16, so bf16 weights keep a master that adds the small steps up; it is copied down
    after each. An fp32 weight is its own master; without `in_fp32` every weight is, as in some published runs."""

    ranks: Ranks = ALONE
    """Who holds the model together."""

    def __init__(self, model: PreTrainedModel, *, in_fp32: bool = True) -> None:
        self.module = model
        """What is computed: the model itself."""
        self._stored = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.tensors: dict[str, Tensor] = {
            name: weight.detach().float().requires_grad_() if in_fp32 and weight.dtype in HALF else weight
            for name, weight in self._stored.items()
        }
        """Parameter name -> the tensor to step, in fp32 where that is asked for."""

    def logprobs(self, part: Pack, *, temperature: float) -> tuple[Tensor, Tensor]:
        """As `token_logprobs`, of the model."""
        return token_logprobs(self.module, part, temperature=temperature)

    @property
    def takes_chunks(self) -> bool:
        """Whether `add_gradients` keeps to its budget whatever the pack."""
        return self.module.device.type == "cpu"

    def add_gradients(
        self, part: Pack, loss: TokenLoss, reference: Tensor | None, *, temperature: float, budget: int
    ) -> PassFigures:
        """Adds the gradients of `token_loss`, of the model."""
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
        """An update begins: nobody reads the model until it is `restore`d or `publish`ed. This one is needed itself."""

    def restore(self) -> None:
        """The update came to nothing: the model is there again, as it was."""

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

    def gradient(self) -> Tensor:
        """All gradients as one vector, 0 where there is none."""
        weights = self.tensors.values()
        parts = [(torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in weights]
        return torch.cat(parts)

    def clip_gradients(self, longest: float) -> float:
        """Scale the gradients down to a global 2-norm of at most `longest`; what it was before."""
        return torch.nn.utils.clip_grad_norm_(self.tensors.values(), longest).item()

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters down, in the dtype the model stores."""
        for name, weight in self._stored.items():
            if self.tensors[name] is not weight:
                weight.copy_(self.tensors[name])

    @property
    def state_bytes(self) -> int:
        """What `state_dict` holds."""
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if tensor is not self._stored[name])

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of an optimiser of `tensors`, as a process that holds the model whole has it."""
        return state

    def parted(self, state: Mapping[str, Any], stepped: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Any]:
        """The other way: of such a state, what an optimiser loads here; `stepped` are its tensors by part, in the order
        in which its state numbers them."""
        return state

    def state_dict(self) -> dict[str, Tensor]:
        """The masters of 16-bit weights; fp32 weights are whole in the model's own files."""
        return {name: tensor.detach() for name, tensor in self.tensors.items() if tensor is not self._stored[name]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved masters, and copy them down."""
        for name in self.state_dict():
            self.tensors[name].copy_(state[name])
            self._stored[name].copy_(self.tensors[name])


Holding = Callable[..., MasterWeights]
"""(model, in_fp32=bool) -> how a policy holds it."""
