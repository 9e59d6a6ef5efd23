"""A tensor that lies in pieces."""

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
        """Where it starts and ends in the whole, along one dimension."""
        return self.offset[dim], self.offset[dim] + self.tensor.shape[dim]

    def overlaps(self, other: TensorPart) -> bool:
        """Whether both hold some element."""
        spans = [(self.span(dim), other.span(dim)) for dim in range(len(self.offset))]
        return all(ours[0] < theirs[1] and theirs[0] < ours[1] for ours, theirs in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A tensor of a model, as the pieces that make it up: none empty, none twice."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[TensorPart, ...]

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def height(self) -> int:
        """How many rows it has: a scalar is one row."""
        return self.shape[0] if self.shape else 1

    def is_complete(self) -> bool:
        """Whether the pieces fill the shape exactly."""
        inside = all(
            piece.span(dim)[0] >= 0 and piece.span(dim)[1] <= size
            for piece in self.pieces
            for dim, size in enumerate(self.shape)
        )
        filled = sum(piece.tensor.numel() for piece in self.pieces) == self.count
        return inside and filled and not any(one.overlaps(other) for one, other in combinations(self.pieces, 2))

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Some rows, put together: (stop - start, ...)."""
        if not self.shape:
            return self.pieces[0].tensor.reshape(1)
        block = torch.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        for piece in self.pieces:
            top, bottom = piece.span(0)
            first, last = max(start, top), min(stop, bottom)
            if first < last:
                box = block[first - start : last - start]
                for dim in range(1, len(self.shape)):
                    box = box.narrow(dim, piece.offset[dim], piece.tensor.shape[dim])
                box.copy_(piece.tensor[first - top : last - top])
        return block
