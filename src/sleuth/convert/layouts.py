"""A tensor that is stored in parts, assembled from those of all ranks by their sharding metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Any

import torch

from sleuth.convert.inert import DTensor, Replicate, Shard, ShardedTensor, fields_of
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """A box of a larger tensor: `TensorPart(offset=(21, 0), tensor=rows_21_to_41)`."""

    offset: tuple[int, ...]
    tensor: torch.Tensor

    def span(self, dim: int) -> tuple[int, int]:
        """Start and end of the part along one dimension of the whole tensor."""
        return self.offset[dim], self.offset[dim] + self.tensor.shape[dim]

    def overlaps(self, other: TensorPart) -> bool:
        """Whether any element is in both parts."""
        spans = [(self.span(dim), other.span(dim)) for dim in range(len(self.offset))]
        return all(ours[0] < theirs[1] and theirs[0] < ours[1] for ours, theirs in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTensor:
    """A tensor of a model, as distinct, non-empty parts."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[TensorPart, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Number of rows; a scalar has one."""
        return self.shape[0] if self.shape else 1

    def is_complete(self) -> bool:
        """Whether the parts fill the shape exactly."""
        inside = all(
            part.span(dim)[0] >= 0 and part.span(dim)[1] <= size
            for part in self.parts
            for dim, size in enumerate(self.shape)
        )
        filled = sum(part.tensor.numel() for part in self.parts) == self.numel
        return inside and filled and not any(one.overlaps(other) for one, other in combinations(self.parts, 2))

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` - 1, assembled from the parts: (stop - start, ...)."""
        if not self.shape:
            return self.parts[0].tensor.reshape(1)
        block = torch.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        for part in self.parts:
            top, bottom = part.span(0)
            first, last = max(start, top), min(stop, bottom)
            if first < last:
                box = block[first - start : last - start]
                for dim in range(1, len(self.shape)):
                    box = box.narrow(dim, part.offset[dim], part.tensor.shape[dim])
                box.copy_(part.tensor[first - top : last - top])
        return block


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
        raise SleuthError(f"{where} is {_text(whole.shape)}, but {_text(shape)} in the model of config.json")
    if not complete:
        raise SleuthError(f"{where}: the parts of {len(entries)} ranks do not make up {_text(shape)}")
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
    [row] = {tuple(tensor.shape[1:]) for tensor in tensors}
    tops = [0, *accumulate(tensor.shape[0] for tensor in tensors)]
    parts = [
        TensorPart(offset=(top, *[0] * len(row)), tensor=tensor) for top, tensor in zip(tops, tensors, strict=False)
    ]
    return (tops[-1], *row), parts


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


def _text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "a scalar"
