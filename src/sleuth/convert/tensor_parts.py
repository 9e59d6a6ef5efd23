"""A tensor that is stored in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch


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
