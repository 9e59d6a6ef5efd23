"""Where in the whole tensor the part of each rank belongs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sleuth.convert.inert import DTensor, Replicate, Shard, ShardedTensor, fields_of
from sleuth.convert.tensor_parts import TensorPart, Whole
from sleuth.types import SleuthError


def whole_of(entries: Sequence[Any], shape: tuple[int, ...], where: str) -> Whole:
    """What the ranks hold under one name, rank 0 first. `where` names the tensor in errors; `shape` is the model's,
    and tells a tensor that every rank holds from the row shards that older versions of verl wrote."""
    try:
        whole = _assembled(entries, shape)
        complete = whole.is_complete()
    except NotImplementedError as error:
        raise SleuthError(f"{where} is sharded by {error}; FSDP and HSDP can be merged") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # a state unlike those that torch writes
        raise SleuthError(f"{where} was not saved as torch saves sharded tensors") from None
    if whole.shape != shape:
        raise SleuthError(f"{where} is {_shown(whole.shape)}, and in the model of config.json {_shown(shape)}")
    if not complete:
        raise SleuthError(f"{where}: the parts of {len(entries)} ranks do not make up {_shown(shape)}")
    return whole


def _assembled(entries: Sequence[Any], shape: tuple[int, ...]) -> Whole:
    """The pieces of all ranks, those that several ranks hold once, from the first of them."""
    stated, pieces = _pieces(entries, shape)
    [dtype] = {piece.tensor.dtype for piece in pieces}
    if any(piece.tensor.layout is not torch.strided or piece.tensor.is_meta for piece in pieces):
        raise TypeError("values that do not lie in the file as they are")
    distinct = {(piece.offset, piece.tensor.shape): piece for piece in reversed(pieces) if piece.tensor.numel()}
    return Whole(shape=stated, dtype=dtype, pieces=tuple(distinct.values()))


def _pieces(entries: Sequence[Any], shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[TensorPart]]:
    """The shape that the ranks state, and every rank's piece."""
    kinds = {type(entry) for entry in entries}
    if len(kinds) == 1 and kinds <= {DTensor, ShardedTensor}:
        located = _mesh_pieces if kinds == {DTensor} else _sharded_pieces
        [stated] = {tuple(entry.shape) for entry in entries}
        return stated, [piece for entry in entries for piece in located(entry)]
    if not all(kind in (torch.Tensor, torch.nn.Parameter) for kind in kinds):
        raise TypeError("values of several kinds")
    tensors = [entry.detach() for entry in entries]
    if len(tensors) == 1 or all(tuple(tensor.shape) == shape for tensor in tensors):
        return tuple(tensors[0].shape), [TensorPart(offset=(0,) * tensors[0].ndim, tensor=tensors[0])]
    return _row_shards(tensors)


def _row_shards(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], list[TensorPart]]:
    [row] = {tuple(tensor.shape[1:]) for tensor in tensors}
    pieces, top = [], 0
    for tensor in tensors:
        pieces.append(TensorPart(offset=(top, *[0] * len(row)), tensor=tensor))
        top += tensor.shape[0]
    return (top, *row), pieces


def _sharded_pieces(entry: ShardedTensor) -> Iterator[TensorPart]:
    for shard in entry.state[0]:
        fields = shard.fields
        yield TensorPart(offset=tuple(fields["metadata"].fields["shard_offsets"]), tensor=fields["tensor"].detach())


def _mesh_pieces(entry: DTensor) -> Iterator[TensorPart]:
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
        chunk = math.ceil(size[dim] / ranks)  # as torch.chunk cuts: the last ranks may hold less, or nothing
        offset[dim] = min(chunk * index, size[dim])
        size[dim] = min(chunk, size[dim] - offset[dim])
    local = fields["_local_tensor"].detach()
    if list(local.shape) != size:
        raise ValueError(f"{tuple(local.shape)} where its placement gives {tuple(size)}")
    yield TensorPart(offset=tuple(offset), tensor=local)


def _mesh_shape(mesh: dict[str, Any]) -> tuple[int, ...]:
    """How many ranks a mesh has along each of its dimensions."""
    if "mesh" in mesh:  # torch until 2.8
        return tuple(mesh["mesh"].shape)
    layout = mesh["_layout"].fields
    sizes = [axis.fields["shape"] for axis in layout["axes"]] if "axes" in layout else layout["shape"]
    return tuple(_count(size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))


def _count(size: Any) -> int:
    return math.prod(map(_count, size)) if isinstance(size, tuple) else size


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "a scalar"
