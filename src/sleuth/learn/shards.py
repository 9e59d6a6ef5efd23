"""A model sharded over ranks: FSDP2 runs it and sums its gradients, and each rank steps its own shards.

A second module of the model's shape, with fp32 weights sharded over the ranks, is trained. The model itself stays an
ordinary one that every rank has whole in the compute dtype, so that engine, scorer, evaluation and saves do not depend
on ranks: it is emptied during an update and gathered again after it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.learn.adapters import adapted_state, merged_weight
from sleuth.learn.master_weights import HALF, MasterWeights, WeightSource, learner_logprobs
from sleuth.learn.optim import in_batches
from sleuth.ranks import Ranks
from sleuth.types import SleuthError

Result = TypeVar("Result")
BUCKET = 2**30
"""Bytes of weights that rank 0 gathers at once, or one weight that is larger."""


class Shards(MasterWeights):
    """A model with weights sharded over ranks. The forward pass is in the model's dtype; gradients are summed over the
    ranks in fp32 and not averaged, since the weights of a loss are shares of the whole step.

    Frozen weights keep their dtype and are not in `tensors`. With `offload`, shards, gradients and optimiser steps are
    in host memory. With `ranks_per_replica`, a divisor of the number of ranks, so many consecutive ones hold the
    weights together, and each such group has them all: they are gathered within a group, and gradients summed over all
    (hybrid sharding, arXiv:2304.11277).
    """

    def __init__(
        self, model: PreTrainedModel, ranks: Ranks, *, offload: bool = False, ranks_per_replica: int | None = None
    ) -> None:
        self.ranks = ranks
        self.model = model
        self.dtype = model.dtype
        self.module = _copy_on_meta(model)
        self._forward = _Forward(self.module)
        self._has_masters = model.dtype in HALF
        self._learns = any(weight.requires_grad for weight in model.parameters())
        self.replicas = ranks.world // (ranks_per_replica or ranks.world)
        self.is_set_aside = False
        """Whether no rank holds the whole model, between updates too."""
        sizes = (ranks.world,) if self.replicas == 1 else (self.replicas, ranks.world // self.replicas)
        mesh = init_device_mesh(model.device.type, sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
        # Pinned memory is copied while the GPU computes; a CPU has none.
        offloading = CPUOffloadPolicy(pin_memory=model.device.type != "cpu") if offload else OffloadPolicy()
        for layer in _layers(self.module):
            _shard(layer, mesh, self.dtype, offloading, keep=False)
        # The root stays unsharded from forward to backward; a reference has no backward pass to reshard it.
        _shard(self._forward, mesh, self.dtype, offloading, keep=self._learns)
        _allocate(self._forward, torch.device("cpu") if offload else model.device)
        self._shards = {name: cast(DTensor, weight) for name, weight in self.module.named_parameters()}
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _fill(self._shards[name], weight)
        self.tensors = {name: weight for name, weight in self._shards.items() if weight.requires_grad}
        if not self._learns:  # a reference is read through its shards only
            self.set_aside()

    def run(self, function: Callable[..., tuple[Tensor, ...]], *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        """As `MasterWeights`, with the weights gathered layer by layer."""
        return self._forward(function, *arguments, **options)

    @property
    def takes_chunks(self) -> bool:
        """False: ranks gather and scatter weights in step, pass by pass."""
        return False

    def set_aside(self) -> None:
        """Frees the memory of the whole model for an update."""
        self._free(lambda name: True)

    def _free(self, which: Callable[[str], bool]) -> None:
        for name, weight in self.model.named_parameters():
            if which(name):
                weight.data = weight.data.new_empty(0)

    @torch.no_grad()
    def restore(self) -> None:
        """Gathers the whole model from the shards; its adapters alone after `stay_in_shards`."""
        for name, weight in self.model.named_parameters():
            if not self.is_set_aside or ".lora_" in name:
                weight.data = self.read(self._shards[name])

    def stay_in_shards(self) -> None:
        """From here on no rank holds the whole model but in `whole`."""
        self.is_set_aside = True
        self._free(lambda name: ".lora_" not in name)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """In this context, which all ranks enter, `model` has its weights."""
        if not self.is_set_aside:
            yield
            return
        self.is_set_aside = False
        self.restore()
        try:
            yield
        finally:
            self.stay_in_shards()

    @torch.no_grad()
    def read(self, weight: Tensor) -> Tensor:
        """A weight of `module`, whole and in the dtype of the model, on every rank."""
        return _full(weight.detach().to(self.dtype)) if isinstance(weight, DTensor) else weight

    @torch.no_grad()
    def run_without_gradients(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """As `run`; no gathered weight is kept for a backward pass."""
        computed = self._forward(function, *arguments)
        cast(FSDPModule, self._forward).reshard()
        return computed

    def source(self) -> WeightSource:
        """See `MasterWeights`."""
        return GatheredWeights(self)

    def collect_gradients(self) -> None:
        """Does nothing: FSDP adds them up in the shards."""

    def discard_gradients(self) -> None:
        """Sets all gradients to None; after an error, also resets FSDP's unfinished pass."""
        for tensor in self.tensors.values():
            tensor.grad = None
        cast(FSDPModule, self._forward).reset_iter_state()

    def gradient(self) -> Tensor:
        """All gradients as one vector, on every rank; zeros for tensors without one."""
        weights = self.tensors.values()
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        return torch.cat([_full(part).flatten() for part in parts])

    def clip_gradients(self, max_norm: float) -> float:
        """As in one process: the norm is over all ranks."""
        norm = torch.nn.utils.clip_grad_norm_(self.tensors.values(), max_norm)
        return cast(DTensor, norm).full_tensor().item()

    def publish(self) -> None:
        """Gathers the whole model from the shards."""
        self.restore()

    @property
    def state_bytes(self) -> int:
        """The size of `state_dict`."""
        return sum(weight.nbytes for weight in self.tensors.values()) if self._has_masters else 0

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The unsharded state, gathered tensor by tensor, in CPU memory of rank 0 only."""
        return self._gathered(state)

    def shard_state(self, state: Mapping[str, Any], stepped: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Any]:
        """The state with this rank's shards of the moments."""
        parts = {}
        for name, part in state["parts"].items():
            sharded = {
                number: {
                    key: _sharded_like(cast(DTensor, stepped[name][number]), value) if value.dim() else value
                    for key, value in moments.items()
                }
                for number, moments in part["state"].items()
            }
            parts[name] = {**part, "state": sharded}
        return {**state, "parts": parts}

    def state_dict(self) -> dict[str, Tensor]:
        """The masters if the model is stored in 16 bits, else empty."""
        return self._gathered(
            {name: weight.detach() for name, weight in self.tensors.items()} if self._has_masters else {}
        )

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores saved masters and gathers the model from them."""
        for name, master in state.items():
            _fill(cast(DTensor, self.tensors[name]), master)
        self.restore()

    def _gathered(self, value: Any) -> Any:
        """The nested value with every DTensor gathered; on other ranks than 0 these are empty."""
        if isinstance(value, Mapping):
            return {name: self._gathered(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._gathered(inner) for inner in value]
        if not isinstance(value, DTensor):
            return value
        full = _full(value)
        return full.cpu() if self.ranks.first else full.new_empty(0)


class GatheredWeights(WeightSource):
    """The weights of a model in shards, for rank 0: in `together` the other ranks do what it asks for. They gather the
    weights bucket by bucket, so that rank 0 holds no more than one beside its shard, and they one weight."""

    gathers = True

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.model, shards.ranks)
        self.one_pass = Lock()  # else as many buckets would be held as there are servers
        self._shards = shards
        self._asking = Lock()
        self._at_hand = False

    @property
    def at_hand(self) -> bool:
        """See `WeightSource`. Outside `together` only where rank 0 has the whole model."""
        return self._at_hand or (self.ranks.first and not self._shards.is_set_aside)

    def together(self, work: Callable[[], Result]) -> Result:
        """See `WeightSource`."""

        def done() -> tuple[None, Result]:
            try:
                return None, work()
            finally:
                with self._asking:  # a thread whose server has failed may still want more
                    self._at_hand = False

        if self.ranks.first:
            self._at_hand = True
            return self.ranks.broadcast(done)[1]
        while True:
            request: Any = self.ranks.broadcast(lambda: None)
            name, given = request
            if name is None:
                return given
            getattr(self, name)(*given)

    def outline(self) -> dict[str, Tensor]:
        """See `WeightSource`."""
        state, dtype = adapted_state(self._shards.module), self._shards.dtype
        return {name: torch.empty(weight.shape, dtype=dtype, device="meta") for name, (weight, _) in state.items()}

    def buckets(self, *, merged: bool = True) -> Iterator[dict[str, Tensor]]:
        """See `WeightSource`."""
        if not self._at_hand:
            yield from super().buckets(merged=merged)
            return
        weights = ((weight, name) for name, weight in self.outline().items())
        for batch in in_batches(weights, BUCKET // self._shards.dtype.itemsize):
            bucket = self._ask("_gathered", [name for _, name in batch], merged)
            yield bucket
            bucket.clear()

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> list[float]:
        """See `WeightSource`."""
        return self._ask("_logprobs", [*prompt], [*completion], temperature)

    def _ask(self, name: str, *given: Any) -> Any:
        """The result of a method that all ranks call."""
        with self._asking:
            if not self._at_hand:
                raise SleuthError("the ranks gather their weights only while they give them to servers")
            self.ranks.broadcast(lambda: (name, given))
            return getattr(self, name)(*given)

    def _gathered(self, names: Sequence[str], merged: bool) -> dict[str, Tensor]:
        """These weights on rank 0."""
        state, bucket = adapted_state(self._shards.module), {}
        for name in names:
            weight, layer = state[name]
            whole = merged_weight(weight, layer if merged else None, self._shards.read)
            if self.ranks.first:
                bucket[name] = whole
        return bucket

    def _logprobs(self, *given: Any) -> list[float]:
        return self._shards.run_without_gradients(learner_logprobs, *given, self.model.device)


class _Forward(nn.Module):
    """The root module for FSDP. Its forward calls a function of the model, which uses the head without the model's own
    forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, function: Callable[..., tuple[Tensor, ...]], *arguments: Any, **options: Any
    ) -> tuple[Tensor, ...]:
        return function(self.model, *arguments, **options)


def _copy_on_meta(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with weights on the meta device, in the dtype in which they are stepped."""

    def empty(weight: nn.Parameter) -> nn.Parameter:
        dtype = torch.float32 if weight.requires_grad and weight.dtype in HALF else weight.dtype
        return nn.Parameter(torch.empty(weight.shape, dtype=dtype, device="meta"), requires_grad=weight.requires_grad)

    return copy.deepcopy(model, {id(weight): empty(weight) for weight in model.parameters()})


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise SleuthError(
            f"{type(model).__name__} has no `layers` to shard over ranks; train it in one process, without torchrun"
        )
    return [*layers]


def _shard(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype, offloading: OffloadPolicy, *, keep: bool) -> None:
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    sharded = fully_shard(
        module, mesh=mesh, mp_policy=precision, offload_policy=offloading, reshard_after_forward=not keep
    )
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo supports sums only


def _allocate(module: nn.Module, device: torch.device) -> None:
    """Allocates weights on the meta device. Buffers are never sharded and stay on the model's device."""
    module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def _full(weight: Tensor) -> Tensor:
    """The unsharded tensor on every rank, gathered on the compute device."""
    device = cast(DTensor, weight).device_mesh.device_type
    return cast(DTensor, weight.to(device)).full_tensor()


def _fill(shard: DTensor, full: Tensor) -> None:
    """Copies this rank's rows of a full tensor; FSDP splits the first dimension as `torch.chunk` does."""
    local, mesh = shard.to_local().detach(), shard.device_mesh
    across = mesh.ndim - 1
    first = mesh.get_local_rank(across) * -(-full.shape[0] // mesh.size(across))
    local.copy_(full[first : first + local.shape[0]])


def _sharded_like(shard: DTensor, full: Tensor) -> DTensor:
    """A full tensor sharded as `shard` is."""
    sharded = cast(DTensor, torch.empty_like(shard, requires_grad=False))
    _fill(sharded, full)
    return sharded
