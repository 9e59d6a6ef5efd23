"""A model in shards over ranks: FSDP2 computes it and sums its gradients, each rank steps its own part.

What learns is a second module of the model's shape, whose weights lie in fp32 shards over the ranks. The model itself
stays an ordinary one that every rank has whole, in the dtype that is computed in, so that engine, scorer, evaluation
and saves know nothing of ranks: it is emptied while an update runs and gathered again behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.learn.logprobs import token_logprobs, token_loss
from sleuth.learn.masters import HALF, MasterWeights
from sleuth.learn.prefix_tree import Pack
from sleuth.learn.targets import PassFigures, TokenLoss
from sleuth.ranks import Ranks
from sleuth.types import SleuthError


class Shards(MasterWeights):
    """A model whose weights lie over ranks. The forward pass is in the model's dtype; gradients are summed over the
    ranks in fp32, not averaged: the weights of a loss are shares of the whole step.

    Where weights are frozen they keep their dtype, and `tensors` lacks them. With `offload` the shards lie in the
    host's memory: gradients are added up there, and an optimiser steps them there.
    """

    def __init__(self, model: PreTrainedModel, ranks: Ranks, *, in_fp32: bool = True, offload: bool = False) -> None:
        self.ranks = ranks
        self.model = model
        self.dtype = model.dtype
        self.module = _hollow(model, in_fp32=in_fp32)
        self._computing = _Computing(self.module)
        self._has_masters = in_fp32 and model.dtype in HALF
        self._learns = any(weight.requires_grad for weight in model.parameters())
        mesh = init_device_mesh(model.device.type, (ranks.world,))
        # Pinned memory is copied while the card computes; a processor has none.
        place = CPUOffloadPolicy(pin_memory=model.device.type != "cpu") if offload else OffloadPolicy()
        for layer in _layers(self.module):
            _shard(layer, mesh, self.dtype, place, keep=False)
        # Between its forward and its backward pass the root stays whole; a reference has no backward pass to free it.
        _shard(self._computing, mesh, self.dtype, place, keep=self._learns)
        _make_room(self._computing, torch.device("cpu") if offload else model.device)
        self._shards = {name: cast(DTensor, weight) for name, weight in self.module.named_parameters()}
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _fill(self._shards[name], weight)
        self.tensors = {name: weight for name, weight in self._shards.items() if weight.requires_grad}
        if not self._learns:  # nobody reads a reference but through its shards
            self.set_aside()

    def logprobs(self, part: Pack, *, temperature: float) -> tuple[Tensor, Tensor]:
        """As `token_logprobs`; every rank asks at the same time, each for a pack of its own."""
        return self._computing(part, temperature)

    @property
    def takes_chunks(self) -> bool:
        """Ranks gather and scatter weights in step, pass by pass."""
        return False

    def add_gradients(
        self, part: Pack, loss: TokenLoss, reference: Tensor | None, *, temperature: float, budget: int
    ) -> PassFigures:
        """As there; every rank asks at the same time, each for a pack of its own."""
        share, logprobs, entropy = self._computing(part, temperature, loss, reference)
        share.backward()
        return PassFigures(loss=share.detach(), logprobs=logprobs, entropy=entropy, computed=len(part.tree))

    def set_aside(self) -> None:
        """An update begins: the whole model makes room."""
        for weight in self.model.parameters():
            weight.data = weight.data.new_empty(0)

    @torch.no_grad()
    def restore(self) -> None:
        """The whole model, gathered from the shards."""
        for name, weight in self.model.named_parameters():
            weight.data = _whole(self._shards[name].detach().to(self.dtype))

    def collect_gradients(self) -> None:
        """FSDP adds them up in the shards."""

    def discard_gradients(self) -> None:
        """Forget all gradients; after an error, also what was under way."""
        for tensor in self.tensors.values():
            tensor.grad = None
        cast(FSDPModule, self._computing).reset_iter_state()

    def gradient(self) -> Tensor:
        """All gradients as one vector, 0 where there is none; on every rank."""
        weights = self.tensors.values()
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        return torch.cat([_whole(part).flatten() for part in parts])

    def clip_gradients(self, longest: float) -> float:
        """As of one process: the norm is over all ranks."""
        norm = torch.nn.utils.clip_grad_norm_(self.tensors.values(), longest)
        return cast(DTensor, norm).full_tensor().item()

    def publish(self) -> None:
        """Gather the whole model again."""
        self.restore()

    @property
    def state_bytes(self) -> int:
        """What `state_dict` holds."""
        return sum(weight.nbytes for weight in self.tensors.values()) if self._has_masters else 0

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """Gathered tensor by tensor, and kept in the memory of the first rank's processor alone."""
        return self._gathered(state)

    def parted(self, state: Mapping[str, Any], stepped: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Any]:
        """This rank's parts of the moments."""
        parts = {}
        for name, part in state["parts"].items():
            of_tensors = {
                number: {
                    key: _like(cast(DTensor, stepped[name][number]), value) if value.dim() else value
                    for key, value in moments.items()
                }
                for number, moments in part["state"].items()
            }
            parts[name] = {**part, "state": of_tensors}
        return {**state, "parts": parts}

    def state_dict(self) -> dict[str, Tensor]:
        """The masters, where the model is stored in 16 bits."""
        return self._gathered(
            {name: weight.detach() for name, weight in self.tensors.items()} if self._has_masters else {}
        )

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved masters, and gather the model from them."""
        for name, master in state.items():
            _fill(cast(DTensor, self.tensors[name]), master)
        self.restore()

    def _gathered(self, value: Any) -> Any:
        """The same with every tensor whole; empty ones where this is not the first rank."""
        if isinstance(value, Mapping):
            return {name: self._gathered(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._gathered(inner) for inner in value]
        if not isinstance(value, DTensor):
            return value
        full = _whole(value)
        return full.cpu() if self.ranks.first else full.new_empty(0)


class _Computing(nn.Module):
    """What FSDP takes for the forward pass: log-probabilities of a pack, or a loss of them, which read the head beside
    the body."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, part: Pack, temperature: float, loss: TokenLoss | None = None, reference: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        if loss is None:
            return token_logprobs(self.model, part, temperature=temperature)
        return token_loss(self.model, part, loss, reference, temperature=temperature)


def _hollow(model: PreTrainedModel, *, in_fp32: bool) -> PreTrainedModel:
    """The same module without memory for its weights, in the dtype in which they are stepped."""

    def empty(weight: nn.Parameter) -> nn.Parameter:
        wide = in_fp32 and weight.requires_grad and weight.dtype in HALF
        dtype = torch.float32 if wide else weight.dtype
        return nn.Parameter(torch.empty(weight.shape, dtype=dtype, device="meta"), requires_grad=weight.requires_grad)

    return copy.deepcopy(model, {id(weight): empty(weight) for weight in model.parameters()})


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise SleuthError(
            f"{type(model).__name__} has no `layers` to lay over ranks; train it in one process, without torchrun"
        )
    return [*layers]


def _shard(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype, place: OffloadPolicy, *, keep: bool) -> None:
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    sharded = fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=place, reshard_after_forward=not keep)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other


def _make_room(module: nn.Module, device: torch.device) -> None:
    """Memory for the weights that have none. Buffers, which are never cut, stay where the model has them."""
    module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def _whole(weight: Tensor) -> Tensor:
    """All ranks' parts, on every rank, gathered on the devices that compute."""
    device = cast(DTensor, weight).device_mesh.device_type
    return cast(DTensor, weight.to(device)).full_tensor()


def _own(weight: Tensor) -> Tensor:
    """This rank's part."""
    return cast(DTensor, weight).to_local().detach()


def _fill(shard: DTensor, full: Tensor) -> None:
    """This rank's rows of a whole tensor: FSDP cuts the first dimension as `torch.chunk` does."""
    own, mesh = _own(shard), shard.device_mesh
    first = mesh.get_local_rank() * -(-full.shape[0] // mesh.size())
    own.copy_(full[first : first + own.shape[0]])


def _like(shard: DTensor, full: Tensor) -> DTensor:
    """A whole tensor laid over the ranks as `shard` is."""
    laid = cast(DTensor, torch.empty_like(shard, requires_grad=False))
    _fill(laid, full)
    return laid
