"""Assembles a tensor from the parts of all ranks, by their sharding metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sleuth.convert.inert import DTensor, Replicate, Shard, ShardedTensor, fields_of
from sleuth.convert.tensor_parts import TensorPart, WholeTensor
from sleuth.types import SleuthError


def assemble_tensor(entries: Sequence[Any], shape: tuple[int, ...], where: str) -> WholeTensor:
    """The tensor that the `entries` of all ranks, rank 0 first, make up. `shape` is the model's, which distinguishes
    replicated tensors from the row shards of older verl versions. Raises SleuthError, which starts with `where`."""
    try:
        whole = _assembled(entries, shape)
        complete = whole.is_complete()
    except NotImplementedError as error:
        raise SleuthError(f"{where} is sharded by {error}; FSDP and HSDP can be merged") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # not a state that torch writes
        raise SleuthError(f"{where} was not saved as torch saves sharded tensors") from None
    if whole.shape != shape:
        raise SleuthError(
            f"{where} is {_shape_text(whole.shape)}, but {_shape_text(shape)} in the model of config.json"
        )
    if not complete:
        raise SleuthError(f"{where}: the parts of {len(entries)} ranks do not make up {_shape_text(shape)}")
    return whole


def _assembled(entries: Sequence[Any], shape: tuple[int, ...]) -> WholeTensor:
    """The parts of all ranks; replicas only once, from the first rank."""
    stated, parts = _parts(entries, shape)
    [dtype] = {part.tensor.dtype for part in parts}
    if any(part.tensor.layout is not torch.strided or part.tensor.is_meta for part in parts):
        raise TypeError("sparse or meta tensors")
    distinct = {(part.offset, part.tensor.shape): part for part in reversed(parts) if part.tensor.numel()}
    return WholeTensor(shape=stated, dtype=dtype, parts=tuple(distinct.values()))


def _parts(entries: Sequence[Any], shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[TensorPart]]:
    """The global shape in the ranks' metadata, and the parts of each rank."""
    kinds = {type(entry) for entry in entries}
    if len(kinds) == 1 and kinds <= {DTensor, ShardedTensor}:
        parts_of = _mesh_parts if kinds == {DTensor} else _sharded_parts
        [stated] = {tuple(entry.shape) for entry in entries}
        return stated, [part for entry in entries for part in parts_of(entry)]
    if not all(kind in (torch.Tensor, torch.nn.Parameter) for kind in kinds):
        raise TypeError("values of several kinds")
    tensors = [entry.detach() for entry in entries]
    if len(tensors) == 1 or all(tuple(tensor.shape) == shape for tensor in tensors):
        return tuple(tensors[0].shape), [TensorPart(offset=(0,) * tensors[0].ndim, tensor=tensors[0])]
    return _row_shards(tensors)


def _row_shards(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], list[TensorPart]]:
    [row] = {tuple(tensor.shape[1:]) for tensor in tensors}
    parts, top = [], 0
    for tensor in tensors:
        parts.append(TensorPart(offset=(top, *[0] * len(row)), tensor=tensor))
        top += tensor.shape[0]
    return (top, *row), parts


def _sharded_parts(entry: ShardedTensor) -> Iterator[TensorPart]:
    for shard in entry.state[0]:
        fields = shard.fields
        yield TensorPart(offset=tuple(fields["metadata"].fields["shard_offsets"]), tensor=fields["tensor"].detach())


def _mesh_parts(entry: DTensor) -> Iterator[TensorPart]:
    fields = fields_of(entry.state)
    spec = fields["_spec"].fields
    mesh = spec["mesh"].fields
    coordinate = mesh["_coordinate_on_dim"]
    offset, size = [0] * entry.ndim, list(entry.shape)
    sharded: set[int] = set()
    for placement, ranks, index in zip(spec["placements"], _mesh_shape(mesh), coordinate, strict=True):
        if isinstance(placement, Replicate):
            continue
        dim = placement.fields["dim"] if isinstance(placement, Shard) else None
        if dim is None or dim in sharded:
            raise NotImplementedError("tensor parallelism (interleaved shards or partial sums)")
        sharded.add(dim)
        chunk = math.ceil(size[dim] / ranks)  # as torch.chunk: the last ranks may have less, or nothing
        offset[dim] = min(chunk * index, size[dim])
        size[dim] = min(chunk, size[dim] - offset[dim])
    local = fields["_local_tensor"].detach()
    if list(local.shape) != size:
        raise ValueError(f"{tuple(local.shape)} where its placement gives {tuple(size)}")
    yield TensorPart(offset=tuple(offset), tensor=local)


def _mesh_shape(mesh: dict[str, Any]) -> tuple[int, ...]:
    """The number of ranks in each dimension of a mesh."""
    if "mesh" in mesh:  # torch until 2.8
        return tuple(mesh["mesh"].shape)
    layout = mesh["_layout"].fields
    sizes = [axis.fields["shape"] for axis in layout["axes"]] if "axes" in layout else layout["shape"]
    return tuple(_count(size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))


def _count(size: Any) -> int:
    return math.prod(map(_count, size)) if isinstance(size, tuple) else size


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "a scalar"
