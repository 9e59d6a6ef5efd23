"""A prefix tree as blocks of attention: a trunk sees itself causally; all that grows out of it lies behind it in one
stretch and sees it whole, with no mask; subtrees of a few tokens, bushes, are taken together under a small mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

BUSH = 128
"""Neighbouring subtrees of together at most so many tokens attend under one mask instead of trunk by trunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens `queries` see those of `keys`: all of them, those before (`causal`), or where `bias` is 0, not -inf.

    Keys are counted with the `above` tokens that a tree grows out of in front, queries without them.
    """

    queries: slice
    keys: slice
    causal: bool = False
    bias: Tensor | None = None  # (n, n)

    @property
    def own(self) -> bool:
        """Whether tokens see themselves here: there is one such block for every token that looks at all."""
        return self.causal or self.bias is not None


def tree_blocks(ends: Tensor, dtype: torch.dtype, above: int = 0) -> list[Block]:
    """The blocks of a tree of N tokens, by where the subtree of each of them ends (N); those in which tokens see
    themselves come first. All of it grows out of `above` more tokens, on everybody's path."""
    blocks = list(_blocks(ends, dtype, above))
    if above:
        blocks.append(Block(queries=slice(0, len(ends)), keys=slice(0, above)))
    return _own_first(blocks)


def narrowed(blocks: Iterable[Block], wanted: Tensor) -> list[Block]:
    """What the `wanted` tokens (M, rising), and those in narrow gaps between them, see."""
    spans = _spans(wanted.tolist())
    return _own_first(part for block in blocks for part in _narrowed(block, spans))


def _blocks(ends: Tensor, dtype: torch.dtype, above: int) -> Iterator[Block]:
    ends_of = ends.tolist()
    forests = [(0, len(ends_of))]  # stretches of whole subtrees, side by side
    while forests:
        first, stop = forests.pop()
        while first < stop:
            bush = first
            while bush < stop and ends_of[bush] - first <= BUSH:
                bush = ends_of[bush]
            if bush > first:
                yield _bush(ends, slice(first, bush), dtype, above)
                first = bush
                continue
            end = ends_of[first]
            trunk = next((at for at in range(first, end) if ends_of[at] != end), end)
            keys = slice(above + first, above + trunk)
            yield Block(queries=slice(first, trunk), keys=keys, causal=True)
            if trunk < end:
                yield Block(queries=slice(trunk, end), keys=keys)
                forests.append((trunk, end))
            first = end


def _bush(ends: Tensor, stretch: slice, dtype: torch.dtype, above: int) -> Block:
    keys = slice(above + stretch.start, above + stretch.stop)
    if (ends[stretch] == stretch.stop).all():
        return Block(queries=stretch, keys=keys, causal=True)
    at = torch.arange(stretch.start, stretch.stop)
    hidden = (at > at[:, None]) | (at[:, None] >= ends[stretch])  # (n, n): not an ancestor
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return Block(queries=stretch, keys=keys, bias=bias)


def _own_first(blocks: Iterable[Block]) -> list[Block]:
    return sorted(blocks, key=lambda block: not block.own)


def _spans(wanted: Sequence[int]) -> list[slice]:
    """The wanted tokens in stretches; gaps as narrow as a bush are bridged."""
    edges = [0, *(at for at in range(1, len(wanted)) if wanted[at] - wanted[at - 1] > BUSH), len(wanted)]
    return [slice(wanted[first], wanted[stop - 1] + 1) for first, stop in pairwise(edges) if stop > first]


def _narrowed(block: Block, spans: Iterable[slice]) -> Iterator[Block]:
    """The part of a block in which tokens of the stretches look. A bush stays whole."""
    queries, keys = block.queries, block.keys
    for stretch in spans:
        part = slice(max(queries.start, stretch.start), min(queries.stop, stretch.stop))
        if part.start >= part.stop:
            continue
        if block.bias is not None:
            yield block
            return
        if not block.causal:
            yield Block(queries=part, keys=keys)
            continue
        above = keys.start - queries.start
        yield Block(queries=part, keys=slice(above + part.start, above + part.stop), causal=True)
        if part.start > queries.start:
            yield Block(queries=part, keys=slice(keys.start, above + part.start))
