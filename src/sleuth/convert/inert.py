"""State dicts read without running a line of what they hold.

torch pickles a sharded tensor as an object of its distributed package, and some of these want a process group before
they can be made. Here each such class is replaced by one that only keeps what the pickle says: the files of any torch
version are read alike, with no process group, and a class that is not in `STAND_INS` is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import serialization

from sleuth.types import SleuthError


class Inert:
    """An object of which only the state that its pickle gives it is known."""

    state: Any = None

    def __new__(cls, *_made_of: Any) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def fields(self) -> dict[str, Any]:
        """The object's attributes by name. TypeError where its pickle holds none."""
        return fields_of(self.state)


class InertTensor(torch.Tensor):
    """A distributed tensor of which only dtype, global shape and pickled state are known."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise TypeError(f"{cls.__name__} holds no values of its own, and {func} asks for them")


class DTensor(InertTensor):
    """State: `_local_tensor` and `_spec` (mesh, placements)."""


class ShardedTensor(InertTensor):
    """State: a tuple that starts with the local shards."""


class ProcessGroupState(Inert):
    """Who saved a ShardedTensor. torch nests the class, and so its pickle asks for it with `getattr`."""


class Replicate(Inert):
    """A mesh dimension along which every rank holds the same."""


class Shard(Inert):
    """A mesh dimension along which each rank holds a chunk of tensor dimension `dim`."""


class OtherPlacement(Inert):
    """Partial sums, and the interleaved chunks of tensor parallelism."""


def _nested(parent: Any, name: Any) -> type[ProcessGroupState]:
    """The one use of `getattr` that a state dict may make."""
    if (parent, name) != (ShardedTensor, "ProcessGroupState"):
        raise pickle.UnpicklingError("GLOBAL builtins.getattr")
    return ProcessGroupState


def _stand_ins() -> Iterator[tuple[str, Any]]:
    """Every name that torch has given to what a sharded state dict is made of, with what is made instead."""
    for package in ("torch.distributed.tensor", "torch.distributed._tensor"):  # the second until torch 2.5
        for module in ("", ".api", "._api"):
            yield f"{package}{module}.DTensor", DTensor
        for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry"):
            yield f"{package}._dtensor_spec.{name}", Inert
            yield f"{package}.placement_types.{name}", Inert
        yield f"{package}.placement_types.Replicate", Replicate
        yield f"{package}.placement_types.Shard", Shard
        for name in ("Partial", "_Partial", "_MaskPartial", "_StridedShard"):
            yield f"{package}.placement_types.{name}", OtherPlacement
    for name in ("device_mesh.DeviceMesh", "_device_mesh.DeviceMesh", "_tensor.device_mesh.DeviceMesh"):
        yield f"torch.distributed.{name}", Inert
    for name in ("_MeshLayout", "_FlatLayout"):
        yield f"torch.distributed._mesh_layout.{name}", Inert
    sharded = "torch.distributed._shard.sharded_tensor"
    yield f"{sharded}.api.ShardedTensor", ShardedTensor
    yield f"{sharded}.api.ShardedTensor.ProcessGroupState", ProcessGroupState
    yield "builtins.getattr", _nested
    for name in (
        f"{sharded}.shard.Shard",
        f"{sharded}.metadata.ShardedTensorMetadata",
        f"{sharded}.metadata.TensorProperties",
        f"{sharded}.metadata.MEM_FORMAT_ENCODING",
        "torch.distributed._shard.metadata.ShardMetadata",
        "torch.distributed._shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
        "torch.distributed._shard.sharding_spec.api.EnumerableShardingSpec",
        "torch.distributed.remote_device._remote_device",
    ):
        yield name, Inert


STAND_INS: dict[str, Any] = dict(_stand_ins())


def fields_of(state: Any) -> dict[str, Any]:
    """Attributes out of a pickled state: a dictionary, or a pair of one and the slots."""
    parts = state if isinstance(state, tuple) else (state,)
    if not all(part is None or isinstance(part, dict) for part in parts):
        raise TypeError("a state without names")
    return {name: value for part in parts if part for name, value in part.items()}


def load_inert(path: Path) -> Mapping[str, Any]:
    """What a `.pt` file holds, its tensors mapped from the disk and read when they are used."""
    path.open("rb").close()  # what cannot be opened is not damaged
    try:
        with _only_stand_ins():
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a file that is no pickle, or a hostile one, may raise anything at all
        raise SleuthError(f"{path}: {_reason(str(error))}") from None
    if not isinstance(found, Mapping):
        raise SleuthError(f"{path}: holds a {type(found).__name__}, and a state dict (name -> tensor) is needed")
    return found


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    """What else this process lets torch unpickle is set aside: importing torch's own DTensor allows the real one."""
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals([(made, name) for name, made in STAND_INS.items()])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def _reason(told: str) -> str:
    refused = re.search(r"GLOBAL (\S+)", told)
    if refused:
        return f"holds {refused[1]}, which is no part of a state dict and could run code: it was not loaded"
    if "_use_new_zipfile_serialization" in told:
        return "is no zip archive, as torch.save writes them; what torch before 1.6 saved has to be saved again first"
    return "cannot be read as a state dict: cut short, damaged, or not written by torch.save"
