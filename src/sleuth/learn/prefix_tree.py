"""The distinct prefixes of many rows, each held once: the layout in which everything that trains is computed.

Siblings of a group share their prompt, often their first query and what it found; all questions of a run share the
instructions. A token is shared when the whole path before it is the same, so what a causal model computes there is the
same for all rows that pass through it, and so is the gradient that comes back, summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sleuth.learn.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """The N distinct tokens of R rows, numbered depth-first: what follows a token lies behind it, in one stretch.

    The rows `[7, 5, 9]`, `[7, 5, 4]` and `[7, 5]` make `tokens [7, 5, 4, 9]`, `positions [0, 1, 2, 2]`,
    `parents [-1, 0, 1, 1]`, `ends [4, 4, 3, 4]` and `places [[0, 1, 3], [0, 1, 2], [0, 1, 0]]`.
    """

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64: how many tokens come before on the path
    parents: Tensor  # (N,) int64: the token before on the path; -1 where there is none
    ends: Tensor  # (N,) int64: token j is on the path of token i just if j <= i < ends[j]
    places: Tensor  # (R, T) int64: where each row's token t lies among the N; 0 in the padding

    def __len__(self) -> int:
        return len(self.tokens)

    def stretch(self, first: int, stop: int) -> PrefixTree:
        """The tokens [first, stop) as a tree of no rows, which grows out of tokens that it does not hold."""
        return PrefixTree(
            tokens=self.tokens[first:stop],
            positions=self.positions[first:stop],
            parents=(self.parents[first:stop] - first).clamp(min=-1),
            ends=self.ends[first:stop].clamp(max=stop) - first,
            places=self.places[:0],
        )

    def to(self, device: torch.device) -> PrefixTree:
        """The same tree on another device."""
        return PrefixTree(**{name: getattr(self, name).to(device) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """What one forward and backward pass computes: R rows of a batch, the `members`, and the tree of their tokens."""

    rows: Batch
    tree: PrefixTree
    members: tuple[int, ...]  # R places in the batch

    def to(self, device: torch.device) -> Pack:
        """The same pack on another device."""
        return Pack(rows=self.rows.to(device), tree=self.tree.to(device), members=self.members)


def pack(batch: Batch, budget: int, *, together: int = 1) -> list[Pack]:
    """The batch's rows in packs of at most `budget` distinct tokens, so that as few tokens as possible are computed.

    Rows are ordered by their tokens, so that rows with much in common are neighbours, and the order is cut where it
    costs least: a group over the budget is split into subtrees that repeat their common prefix. A row longer than the
    budget gets a pack of its own. Every `together` rows of the batch, such as the two of a pair, stay in one pack and
    in their order, as if they were one. The same batch gives the same packs, in the same order.
    """
    order = ordered(batch, together)
    parts = [order.rows(first, stop) for first, stop in _cuts(order.lengths, order.shared, budget)]
    return [packed(batch, rows) for rows in parts]


def packed(batch: Batch, rows: Sequence[int]) -> Pack:
    """These rows of a batch in one pack."""
    return Pack(rows=(part := batch.take(rows)), tree=prefix_tree(part), members=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Units of rows that stay together, by their tokens. `lengths` are the distinct tokens of each unit by itself,
    `shared` how many of them the unit before has too: what one adds behind another is the difference."""

    units: Sequence[Sequence[int]]
    lengths: Sequence[int]
    shared: Sequence[int]

    def rows(self, first: int, stop: int) -> list[int]:
        """The rows of a stretch of units."""
        return [row for unit in self.units[first:stop] for row in unit]


def ordered(batch: Batch, together: int = 1) -> Ordered:
    """Every `together` rows of a batch as one unit, in an order that makes neighbours of those with much in common."""
    texts = _rows(batch)
    units = [range(first, first + together) for first in range(0, len(texts), together)]
    order = sorted(units, key=lambda unit: (texts[unit[0]], unit[0]))
    inside = [_shared_with_the_row_before([texts[row] for row in unit]) for unit in order]
    lengths = [sum(len(texts[row]) for row in unit) - sum(of_unit) for unit, of_unit in zip(order, inside, strict=True)]
    return Ordered(units=order, lengths=lengths, shared=_shared_with_the_row_before([texts[unit[0]] for unit in order]))


def prefix_tree(batch: Batch) -> PrefixTree:
    """The tree of all rows of `batch`."""
    rows = _rows(batch)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    shared = _shared_with_the_row_before([rows[row] for row in order])
    places = np.zeros(batch.tokens.shape, dtype=np.int64)
    total = sum(len(row) for row in rows) - sum(shared)
    tokens, positions, parents = (np.empty(total, dtype=np.int64) for _ in range(3))
    ends = np.full(total, total)
    size, before = 0, np.zeros(0, dtype=np.int64)
    for row, common in zip(order, shared, strict=True):
        ends[before[common:]] = size  # what the row before did not share with this one is over
        path = np.concatenate((before[:common], np.arange(size, size + len(rows[row]) - common)))
        fresh = path[common:]
        tokens[fresh] = rows[row][common:]
        positions[fresh] = np.arange(common, len(path))
        parents[fresh] = np.concatenate(([-1], path))[common : len(path)]
        places[row, : len(path)] = path
        size, before = size + len(fresh), path
    arrays = {"tokens": tokens, "positions": positions, "parents": parents, "ends": ends, "places": places}
    return PrefixTree(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row[:length]) for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]


def _shared_with_the_row_before(rows: Sequence[Sequence[int]]) -> list[int]:
    """The length of the longest common prefix of each row with its neighbour; the first has none."""
    return [0, *(_common_prefix(a, b) for a, b in pairwise(rows))]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = min(len(a), len(b))
    differs = np.asarray(a[:length]) != np.asarray(b[:length])
    return int(differs.argmax()) if differs.any() else length


def _cuts(lengths: Sequence[int], shared: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Where to cut ordered rows: parts [first, stop) within the budget, of the fewest tokens, then the fewest parts.

    `best[i]` is the least cost of the rows from i on. A part costs its first row whole, and of each further one what it
    does not share with the row before.
    """
    count = len(lengths)
    added = np.cumsum([0, *(length - common for length, common in zip(lengths, shared, strict=True))])
    best = np.zeros(count + 1, dtype=np.int64)
    stops = np.zeros(count, dtype=np.int64)
    for first in range(count - 1, -1, -1):
        tokens = lengths[first] + added[first + 1 :] - added[first + 1]  # of the parts [first, first + 1), ...
        fitting = max(1, int(np.searchsorted(tokens, budget, side="right")))
        costs = tokens[:fitting] * (count + 1) + 1 + best[first + 1 : first + 1 + fitting]
        stops[first] = first + 1 + int(costs.argmin())
        best[first] = costs.min()
    first = 0
    while first < count:
        yield first, int(stops[first])
        first = int(stops[first])
