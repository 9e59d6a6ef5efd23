"""Prefix trees: the distinct prefixes of many rows, each stored once. All training computes in this layout.

Episodes of a group share their prompt, often their first query and its results; all questions of a run share the
instructions. A token is shared if its whole path is the same; then a causal model computes the same for all rows
through it, and their gradients add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sleuth.kernels.device import sent
from sleuth.learn.batch import Batch
from sleuth.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """The N distinct tokens of R rows as nodes in depth-first order, so that every subtree is contiguous.

    The rows `[7, 5, 9]`, `[7, 5, 4]` and `[7, 5]` make `tokens [7, 5, 4, 9]`, `positions [0, 1, 2, 2]`,
    `parents [-1, 0, 1, 1]`, `ends [4, 4, 3, 4]` and `nodes [[0, 1, 3], [0, 1, 2], [0, 1, 0]]`.
    """

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64: how many tokens come before on the path
    parents: Tensor  # (N,) int64: the token before on the path; -1 for the first
    ends: Tensor  # (N,) int64: end of the subtree; token j is on the path of token i iff j <= i < ends[j]
    nodes: Tensor  # (R, T) int64: the node of each row's token t; 0 in the padding
    depth: int  # tokens of the longest path

    def __len__(self) -> int:
        return len(self.tokens)

    def stretch(self, first: int, stop: int) -> PrefixTree:
        """The nodes [first, stop) as a tree of no rows; tokens before them on the path are left out."""
        return PrefixTree(
            tokens=self.tokens[first:stop],
            positions=self.positions[first:stop],
            parents=(self.parents[first:stop] - first).clamp(min=-1),
            ends=self.ends[first:stop].clamp(max=stop) - first,
            nodes=self.nodes[:0],
            depth=int(self.positions[first:stop].max()) + 1,
        )

    def to(self, device: torch.device) -> PrefixTree:
        """The same tree on another device."""
        names = ("tokens", "positions", "parents", "ends", "nodes")
        return replace(self, **{name: sent(getattr(self, name), device) for name in names})


def gather_rows(values: Tensor, numbers: Tensor) -> Tensor:
    """`values[numbers]`, with gradients of repeated numbers added up in the same order each time.

    Both ways of writing it are needed: on a CPU only the backward pass of `index_select` has a fixed order, on a card
    only that of indexing, which sorts the numbers instead of adding atomically.
    """
    return values.index_select(0, numbers) if values.device.type == "cpu" else values[numbers]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """The work of one forward and backward pass: R rows of a batch and the tree of their tokens."""

    rows: Batch
    tree: PrefixTree
    members: tuple[int, ...]  # R indices of the rows in the batch
    sent_from: Pack | None = None

    def to(self, device: torch.device) -> Pack:
        """The same pack on another device."""
        return replace(self, rows=self.rows.to(device), tree=self.tree.to(device), sent_from=self.on_host)

    @property
    def on_host(self) -> Pack:
        """The pack as it was made: what a pass counts and sorts, it does there, since nobody waits for a host."""
        return self.sent_from or self

    def send(self, tensor: Tensor) -> Tensor:
        """A tensor of the host where the pack is."""
        return sent(tensor, self.tree.tokens.device)


def pack(batch: Batch, budget: int, *, together: int = 1) -> list[Pack]:
    """Packs of at most `budget` distinct tokens that compute as few tokens as possible in total.

    Rows are sorted by their tokens, so that rows with long common prefixes are neighbours, and the order is cut where
    it costs least: a group over the budget is split into subtrees that repeat their common prefix. A row longer than
    the budget gets its own pack. Every `together` consecutive rows of the batch, such as a pair, stay in one pack and
    in order. Deterministic.
    """
    order = row_order(batch, together)
    parts = [order.rows(first, stop) for first, stop in _cuts(order.lengths, order.shared, budget)]
    return [packed(batch, rows) for rows in parts]


def padded_packs(batch: Batch, budget: int, *, together: int = 1) -> list[Pack]:
    """Packs of rows of about one length, which have at most `budget` tokens with their padding, or are one row. Their
    trees share no prefix: such packs are for models that compute each row by itself. Otherwise as `pack`."""
    lengths = batch.lengths.view(-1, together).amax(dim=1)
    order = lengths.argsort(descending=True, stable=True).tolist()
    packs: list[Pack] = []
    while order:
        count = max(1, budget // (int(lengths[order[0]]) * together))
        rows = [unit * together + at for unit in order[:count] for at in range(together)]
        packs.append(packed(batch, rows, shares=False))
        order = order[count:]
    return packs


def packed(batch: Batch, rows: Sequence[int], *, shares: bool = True) -> Pack:
    """One pack of these rows of a batch."""
    return Pack(rows=(part := batch.take(rows)), tree=prefix_tree(part, shares=shares), members=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """Units of rows that stay together, sorted by their tokens. `lengths` are the distinct tokens of each unit,
    `shared` how many of them the previous unit has too; after it, a unit adds the difference."""

    units: Sequence[Sequence[int]]
    lengths: Sequence[int]
    shared: Sequence[int]

    def rows(self, first: int, stop: int) -> list[int]:
        """The rows of the units [first, stop)."""
        return [row for unit in self.units[first:stop] for row in unit]


def row_order(batch: Batch, together: int = 1) -> RowOrder:
    """Every `together` rows of a batch as one unit, sorted so that units with long common prefixes are neighbours."""
    texts = _rows(batch)
    units = [range(first, first + together) for first in range(0, len(texts), together)]
    keys = [_key(text) for text in texts]
    order = sorted(units, key=lambda unit: (keys[unit[0]], unit[0]))
    repeated = [sum(_shared_with_previous([texts[row] for row in unit])) for unit in order]
    lengths = [sum(len(texts[row]) for row in unit) - again for unit, again in zip(order, repeated, strict=True)]
    return RowOrder(units=order, lengths=lengths, shared=_shared_with_previous([texts[unit[0]] for unit in order]))


def prefix_tree(batch: Batch, *, shares: bool = True) -> PrefixTree:
    """The prefix tree of all rows of `batch`; unless it `shares`, each row is a path of its own."""
    rows = _rows(batch)
    keys = [_key(row) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = _shared_with_previous([rows[row] for row in order]) if shares else [0] * len(rows)
    nodes = np.zeros(batch.tokens.shape, dtype=np.int64)
    total = sum(len(row) for row in rows) - sum(shared)
    tokens, positions, parents = (np.empty(total, dtype=np.int64) for _ in range(3))
    ends = np.full(total, total)
    size, before = 0, np.zeros(0, dtype=np.int64)
    for row, common in zip(order, shared, strict=True):
        ends[before[common:]] = size  # subtrees of the previous row that this one does not share end here
        path = np.concatenate((before[:common], np.arange(size, size + len(rows[row]) - common)))
        new = path[common:]
        tokens[new] = rows[row][common:]
        positions[new] = np.arange(common, len(path))
        parents[new] = np.concatenate(([-1], path))[common : len(path)]
        nodes[row, : len(path)] = path
        size, before = size + len(new), path
    arrays = {"tokens": tokens, "positions": positions, "parents": parents, "ends": ends, "nodes": nodes}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return PrefixTree(**tensors, depth=max(map(len, rows)))


def _rows(batch: Batch) -> list[np.ndarray]:
    """The tokens of each row."""
    return [row[:length] for row, length in zip(batch.tokens.numpy(), batch.lengths.tolist(), strict=True)]


def _key(row: np.ndarray) -> bytes:
    """What sorts as the tokens do, which are not negative."""
    return row.astype(">i8").tobytes()


def _shared_with_previous(rows: Sequence[np.ndarray]) -> list[int]:
    """The length of each row's longest common prefix with the previous row; 0 for the first."""
    return [0, *(_common_prefix(a, b) for a, b in pairwise(rows))]


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _cuts(lengths: Sequence[int], shared: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Yields parts [first, stop) of the sorted rows within the budget, with the fewest tokens, then the fewest parts.

    Dynamic programming: `best[i]` is the minimum cost of the rows from i on. A part costs its first row whole and of
    each other row what it does not share with the previous one.
    """
    count = len(lengths)
    added = np.cumsum([0, *(length - common for length, common in zip(lengths, shared, strict=True))])
    best = np.zeros(count + 1, dtype=np.int64)
    stops = np.zeros(count, dtype=np.int64)
    for first in range(count - 1, -1, -1):
        tokens = (
            lengths[first] + added[first + 1 :] - added[first + 1]
        )  # of [first, first + 1), [first, first + 2), ...
        fitting = max(1, int(np.searchsorted(tokens, budget, side="right")))
        costs = tokens[:fitting] * (count + 1) + 1 + best[first + 1 : first + 1 + fitting]
        stops[first] = first + 1 + int(costs.argmin())
        best[first] = costs.min()
    first = 0
    while first < count:
        yield first, int(stops[first])
        first = int(stops[first])


def shard_packs(
    batch: Batch, budget: int, ranks: Ranks, *, together: int = 1, cut: Callable[..., list[Pack]] = pack
) -> list[Pack]:
    """This rank's packs of a batch of which every rank has all rows with their weights; otherwise as `cut`.

    Ranks gather and scatter weights in step, so all must make the same number of passes: ranks with fewer packs get
    `filler` packs of weight 0.
    """
    if ranks.alone:
        return cut(batch, budget, together=together)
    shares = shard_rows(batch, ranks.world, together=together)
    packs = [cut(batch.take(rows), budget, together=together) if rows else [] for rows in shares]
    passes = max(map(len, packs))
    mine = packs[ranks.rank]
    return mine + [filler(batch, together)] * (passes - len(mine))


def shard_rows(batch: Batch, world: int, *, together: int = 1) -> list[list[int]]:
    """The rows of each of `world` ranks: neighbours in the order of `pack`, so that common prefixes are computed once,
    cut so that the maximum of tokens per rank is as small as possible."""
    order = row_order(batch, together)
    parts = list(_parts(order, _min_budget(order, world)))
    parts += [(len(order.units), len(order.units))] * (world - len(parts))
    return [order.rows(first, stop) for first, stop in parts]


def filler(batch: Batch, together: int) -> Pack:
    """A pack of two tokens with weight 0, whose pass costs almost nothing and adds exactly 0."""
    rows = batch.take([int(batch.lengths.argmax())] * together)
    trained = torch.zeros_like(rows.trained[:, :2])
    trained[:, 1] = True
    zeros = torch.zeros(trained.shape)
    empty = Batch(
        tokens=rows.tokens[:, :2],
        lengths=torch.full((together,), 2),
        trained=trained,
        advantages=zeros,
        weights=zeros,
        sampler_logprobs=None if batch.sampler_logprobs is None else zeros,
        guidance=None if batch.guidance is None else zeros,
    )
    return Pack(rows=empty, tree=prefix_tree(empty), members=())


def _min_budget(order: RowOrder, world: int) -> int:
    """The smallest token budget with at most `world` parts."""
    low, high = max(order.lengths), sum(order.lengths)
    while low < high:
        middle = (low + high) // 2
        if sum(1 for _ in _parts(order, middle)) <= world:
            high = middle
        else:
            low = middle + 1
    return low


def _parts(order: RowOrder, budget: int) -> Iterator[tuple[int, int]]:
    """Yields parts [first, stop) of units, each as long as its distinct tokens fit the budget."""
    first, tokens = 0, 0
    for at, (length, shared) in enumerate(zip(order.lengths, order.shared, strict=True)):
        added = length if at == first else length - shared
        if at > first and tokens + added > budget:
            yield first, at
            first, added, tokens = at, length, 0
        tokens += added
    yield first, len(order.units)
