"""Sharding of a step's rows over ranks: each rank gets neighbouring rows, and all make the same number of passes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sleuth.learn.batch import Batch
from sleuth.learn.prefix_tree import Pack, RowOrder, pack, prefix_tree, row_order
from sleuth.ranks import Ranks


def shard_packs(batch: Batch, budget: int, ranks: Ranks, *, together: int = 1) -> list[Pack]:
    """This rank's packs of a batch of which every rank has all rows with their weights; otherwise as `pack`.

    Ranks gather and scatter weights in step, so all must make the same number of passes: ranks with fewer packs get
    `filler` packs of weight 0.
    """
    if ranks.alone:
        return pack(batch, budget, together=together)
    shares = shard_rows(batch, ranks.world, together=together)
    packs = [pack(batch.take(rows), budget, together=together) if rows else [] for rows in shares]
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
