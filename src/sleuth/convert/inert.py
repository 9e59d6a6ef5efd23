"""Loads state dicts without running any code in them.

torch pickles sharded tensors as objects of its distributed package, some of which need a process group. Here each such
class is replaced by one that only stores its pickled state, so that files of all torch versions can be read without a
process group. A class that is not in `STAND_INS` is refused.
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
    """An object that only stores its pickled state."""

    state: Any = None

    def __new__(cls, *_arguments: Any) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def fields(self) -> dict[str, Any]:
        """Attributes by name. Raises TypeError if the state has none."""
        return fields_of(self.state)


class InertTensor(torch.Tensor):
    """A distributed tensor that only has dtype, global shape and pickled state."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise TypeError(f"{cls.__name__} has no values, which {func} needs")


class DTensor(InertTensor):
    """State: `_local_tensor` and `_spec` (mesh, placements)."""


class ShardedTensor(InertTensor):
    """State: a tuple that starts with the local shards."""


class ProcessGroupState(Inert):
    """The ranks that saved a ShardedTensor. A nested class in torch, so that pickles look it up with `getattr`."""


class Replicate(Inert):
    """A mesh dimension with replicas."""


class Shard(Inert):
    """A mesh dimension whose ranks have chunks of tensor dimension `dim`."""


class OtherPlacement(Inert):
    """A placement of tensor parallelism: partial sums, or interleaved chunks."""


def _nested(parent: Any, name: Any) -> type[ProcessGroupState]:
    """Replaces `getattr` in pickles; allows only its one use in a state dict."""
    if (parent, name) != (ShardedTensor, "ProcessGroupState"):
        raise pickle.UnpicklingError("GLOBAL builtins.getattr")
    return ProcessGroupState


TENSOR = ("torch.distributed.tensor", "torch.distributed._tensor")  # the second until torch 2.5
SHARDED = "torch.distributed._shard.sharded_tensor"
SHARDING = "torch.distributed._shard.sharding_spec"
MODULES = ("_dtensor_spec", "placement_types")
SPECS = ("DTensorSpec", "TensorMeta", "ShardOrderEntry")
OTHERS = ("Partial", "_Partial", "_MaskPartial", "_StridedShard")
STAND_INS: dict[str, Any] = {
    **{f"{package}{module}.DTensor": DTensor for package in TENSOR for module in ("", ".api", "._api")},
    **{f"{package}.{module}.{name}": Inert for package in TENSOR for module in MODULES for name in SPECS},
    **{f"{package}.placement_types.{kind.__name__}": kind for package in TENSOR for kind in (Replicate, Shard)},
    **{f"{package}.placement_types.{name}": OtherPlacement for package in TENSOR for name in OTHERS},
    f"{SHARDED}.api.ShardedTensor": ShardedTensor,
    f"{SHARDED}.api.ShardedTensor.ProcessGroupState": ProcessGroupState,
    "builtins.getattr": _nested,
    **dict.fromkeys(
        (
            "torch.distributed.device_mesh.DeviceMesh",
            "torch.distributed._device_mesh.DeviceMesh",
            "torch.distributed._tensor.device_mesh.DeviceMesh",
            "torch.distributed._mesh_layout._MeshLayout",
            "torch.distributed._mesh_layout._FlatLayout",
            f"{SHARDED}.shard.Shard",
            f"{SHARDED}.metadata.ShardedTensorMetadata",
            f"{SHARDED}.metadata.TensorProperties",
            f"{SHARDED}.metadata.MEM_FORMAT_ENCODING",
            "torch.distributed._shard.metadata.ShardMetadata",
            f"{SHARDING}.chunk_sharding_spec.ChunkShardingSpec",
            f"{SHARDING}.api.EnumerableShardingSpec",
            "torch.distributed.remote_device._remote_device",
        ),
        Inert,
    ),
}
"""The name of each class in the sharded state dicts of all torch versions, with its replacement."""


def fields_of(state: Any) -> dict[str, Any]:
    """The attributes in a pickled state: a dictionary, or a pair of dictionary and slots."""
    parts = state if isinstance(state, tuple) else (state,)
    if not all(part is None or isinstance(part, dict) for part in parts):
        raise TypeError("a state without attribute names")
    return {name: value for part in parts if part for name, value in part.items()}


def load_inert(path: Path) -> Mapping[str, Any]:
    """The contents of a `.pt` file, tensors memory-mapped. Raises OSError if it cannot be opened, else SleuthError."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SleuthError(f"{path}: is not a file")
    path.open("rb").close()  # raises OSError before the errors below are taken for a damaged file
    try:
        with _only_stand_ins():
            contents = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a damaged or hostile file may raise anything
        raise SleuthError(f"{path}: {_reason(str(error))}") from None
    if not isinstance(contents, Mapping):
        raise SleuthError(f"{path}: contains a {type(contents).__name__}, expected a state dict (name -> tensor)")
    return contents


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    """Lets torch unpickle only `STAND_INS`; importing torch's DTensor would otherwise allow the real class."""
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals([(stand_in, name) for name, stand_in in STAND_INS.items()])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def _reason(message: str) -> str:
    if refused := re.search(r"GLOBAL (\S+)", message):
        return f"contains {refused[1]}, which does not belong in a state dict and could run code; not loaded"
    if "_use_new_zipfile_serialization" in message:
        return "is not a zip archive of torch.save; files of torch before 1.6 must be saved again with a newer version"
    return "cannot be read as a state dict: truncated, damaged, or not written by torch.save"
