"""The rows of a step dealt over ranks: each gets a stretch of the prefix tree, and all make equally many passes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sleuth.learn.batch import Batch
from sleuth.learn.prefix_tree import Ordered, Pack, ordered, pack, prefix_tree
from sleuth.ranks import Ranks


def shard_packs(batch: Batch, budget: int, ranks: Ranks, *, together: int = 1) -> list[Pack]:
    """This rank's packs of a batch that every rank has whole, weights and all; otherwise as `pack`.

    Every rank makes as many passes as any other, since they gather and scatter weights in step: who has fewer packs
    gets fillers, in which nothing has weight.
    """
    if ranks.alone:
        return pack(batch, budget, together=together)
    shares = shard_rows(batch, ranks.world, together=together)
    packs = [pack(batch.take(rows), budget, together=together) if rows else [] for rows in shares]
    most = max(len(of_rank) for of_rank in packs)
    mine = packs[ranks.rank]
    return mine + [filler(batch, together)] * (most - len(mine))


def shard_rows(batch: Batch, world: int, *, together: int = 1) -> list[list[int]]:
    """The rows of each of `world` ranks: neighbours in the order of `pack`, so that what they share at their beginning
    is computed once, cut so that the rank which computes most computes as little as can be."""
    order = ordered(batch, together)
    most = _least_most(order, world)
    cuts = list(_filled(order, most))
    cuts += [(len(order.units), len(order.units))] * (world - len(cuts))
    return [order.rows(first, stop) for first, stop in cuts]


def filler(batch: Batch, together: int) -> Pack:
    """A pass that costs next to nothing and adds exactly nothing: two tokens of the longest row, which weigh 0."""
    rows = batch.take([int(batch.lengths.argmax())] * together)
    trained = torch.zeros_like(rows.trained[:, :2])
    trained[:, 1] = True
    nothing = torch.zeros(trained.shape)
    empty = Batch(
        tokens=rows.tokens[:, :2],
        lengths=torch.full((together,), 2),
        trained=trained,
        advantages=nothing,
        weights=nothing,
        sampler_logprobs=None if batch.sampler_logprobs is None else nothing,
    )
    return Pack(rows=empty, tree=prefix_tree(empty), members=())


def _least_most(order: Ordered, world: int) -> int:
    """The least budget under which the order fills no more than `world` stretches."""
    low, high = max(order.lengths), sum(order.lengths)
    while low < high:
        middle = (low + high) // 2
        if sum(1 for _ in _filled(order, middle)) <= world:
            high = middle
        else:
            low = middle + 1
    return low


def _filled(order: Ordered, budget: int) -> Iterator[tuple[int, int]]:
    """Stretches [first, stop) of units, each as long as its distinct tokens stay within the budget."""
    first, tokens = 0, 0
    for at, (length, shared) in enumerate(zip(order.lengths, order.shared, strict=True)):
        added = length if at == first else length - shared
        if at > first and tokens + added > budget:
            yield first, at
            first, added, tokens = at, length, 0
        tokens += added
    yield first, len(order.units)
