"""A prefix tree as blocks of queries and keys for attention on a CPU, with or without a sliding window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

MAX_MASK_TOKENS = 128
"""Neighbouring subtrees of at most this many tokens together are one block with a mask."""
WINDOW_QUERIES = 128
"""Queries of a block that a window divides."""
HIDDEN = -1e30
"""Added to the score of a hidden key. Not -inf: a query at the edge of a window may see no key of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens `queries` attend to `keys`: to all, to those before (`causal`), or where `bias` is 0 and not `HIDDEN`.

    Key indices count the `above` tokens on the path to the tree first; query indices do not count them. At the `edge`
    of a window, the keys are others than the queries.
    """

    queries: slice
    keys: slice
    causal: bool = False
    bias: Tensor | None = None  # (queries, keys)
    edge: bool = False

    @property
    def includes_self(self) -> bool:
        """Whether queries attend to themselves here; every query token has exactly one such block."""
        return self.causal or (self.bias is not None and not self.edge)


def tree_blocks(ends: Tensor, dtype: torch.dtype, above: int = 0) -> list[Block]:
    """The blocks of a tree of N tokens whose subtrees end at `ends` (N), those with `includes_self` first. `above`
    tokens before the tree are on every path."""
    blocks = list(_blocks(ends, dtype, above))
    if above:
        blocks.append(Block(queries=slice(0, len(ends)), keys=slice(0, above)))
    return _self_first(blocks)


def blocks_for_outputs(blocks: Iterable[Block], output_indices: Tensor) -> list[Block]:
    """The blocks restricted to queries at `output_indices` (M, ascending) and in narrow gaps between them."""
    spans = _spans(output_indices.tolist())
    return _self_first(part for block in blocks for part in _restricted(block, spans))


def _blocks(ends: Tensor, dtype: torch.dtype, above: int) -> Iterator[Block]:
    ends_of = ends.tolist()
    forests = [(0, len(ends_of))]  # [first, stop) of adjacent whole subtrees
    while forests:
        first, stop = forests.pop()
        while first < stop:
            small = first  # end of the subtrees that fit one mask
            while small < stop and ends_of[small] - first <= MAX_MASK_TOKENS:
                small = ends_of[small]
            if small > first:
                yield _masked_block(ends, slice(first, small), dtype, above)
                first = small
                continue
            end = ends_of[first]
            trunk = next((at for at in range(first, end) if ends_of[at] != end), end)
            keys = slice(above + first, above + trunk)
            yield Block(queries=slice(first, trunk), keys=keys, causal=True)
            if trunk < end:
                yield Block(queries=slice(trunk, end), keys=keys)
                forests.append((trunk, end))
            first = end


def _masked_block(ends: Tensor, span: slice, dtype: torch.dtype, above: int) -> Block:
    keys = slice(above + span.start, above + span.stop)
    if (ends[span] == span.stop).all():
        return Block(queries=span, keys=keys, causal=True)
    at = torch.arange(span.start, span.stop)
    hidden = (at > at[:, None]) | (at[:, None] >= ends[span])  # (n, n): not an ancestor
    return Block(queries=span, keys=keys, bias=_bias(hidden, dtype))


def _bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, max(HIDDEN, torch.finfo(dtype).min))


def _self_first(blocks: Iterable[Block]) -> list[Block]:
    return sorted(blocks, key=lambda block: not block.includes_self)


def _spans(indices: Sequence[int]) -> list[slice]:
    """Contiguous spans that cover `indices`; gaps of at most `MAX_MASK_TOKENS` are included."""
    gaps = (at for at in range(1, len(indices)) if indices[at] - indices[at - 1] > MAX_MASK_TOKENS)
    edges = [0, *gaps, len(indices)]
    return [slice(indices[first], indices[stop - 1] + 1) for first, stop in pairwise(edges) if stop > first]


def _restricted(block: Block, spans: Iterable[slice]) -> Iterator[Block]:
    """The parts of a block whose queries are in `spans`. A block with a mask stays whole."""
    queries, keys = block.queries, block.keys
    for span in spans:
        part = slice(max(queries.start, span.start), min(queries.stop, span.stop))
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


def within_window(blocks: Iterable[Block], positions: Tensor, window: int, dtype: torch.dtype) -> list[Block]:
    """The blocks of a tree, or of a part of one, whose tokens attend only to the last `window` of their path, including
    themselves. `positions` (N) are those of the tree's tokens on their paths."""
    above = int(positions[0])
    of_keys = torch.cat([torch.arange(above), positions])
    return _self_first(part for block in blocks for part in _windowed(block, positions, of_keys, window, dtype))


def _windowed(block: Block, positions: Tensor, of_keys: Tensor, window: int, dtype: torch.dtype) -> Iterator[Block]:
    """The parts of a block inside the window. But for blocks with a mask, which are small, its keys are a path."""
    own, keys = positions[block.queries], of_keys[block.keys]
    if int(own.max()) - int(keys.min()) < window:
        yield block
    elif block.bias is not None:
        hidden = own[:, None] - keys >= window
        yield replace(block, bias=torch.minimum(block.bias, _bias(hidden, dtype)))
    else:
        for first in range(0, len(own), WINDOW_QUERIES):
            yield from _windowed_part(block, first, own[first : first + WINDOW_QUERIES], int(keys[0]), window, dtype)


def _windowed_part(
    block: Block, first: int, own: Tensor, begin: int, window: int, dtype: torch.dtype
) -> Iterator[Block]:
    """The parts of a block for its queries from `first` on, which are at the positions `own`; the first key is at the
    position `begin`: themselves, the keys that all of them see, and those that some see."""
    count = len(own)
    queries = slice(block.queries.start + first, block.queries.start + first + count)
    least, most = int(own.min()), int(own.max())
    start, stop = block.keys.start, block.keys.stop
    if block.causal:
        stop = start + first
        if count <= window:
            yield Block(queries=queries, keys=slice(stop, stop + count), causal=True)
        else:
            hidden = (own > own[:, None]) | (own[:, None] - own >= window)
            yield Block(queries=queries, keys=slice(stop, stop + count), bias=_bias(hidden, dtype))
    some = max(start, start + least - window + 1 - begin)  # the first key that one of them sees
    seen = max(start, start + most - window + 1 - begin)
    if seen < stop:
        yield Block(queries=queries, keys=slice(seen, stop))
    if some < (seen := min(seen, stop)):
        at = torch.arange(some, seen) - start + begin
        yield Block(queries=queries, keys=slice(some, seen), bias=_bias(own[:, None] - at >= window, dtype), edge=True)
