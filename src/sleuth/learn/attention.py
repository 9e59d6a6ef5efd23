"""Attention over a prefix tree: every token attends to the tokens on its own path.

On a CPU the tree is split into blocks, so that no mask over many tokens is built; a token's outputs from several blocks
are merged by log-sum-exp. The backward pass runs over the same blocks with the merged output and log-sum-exp, so the
gradient is exact (as in ring attention, arXiv:2310.01889). On other devices FlexAttention (arXiv:2412.05496) masks by
ancestry. A sliding window hides what is too far up the path. `ActivationBoundary` connects trees that are computed in
parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface

from sleuth.learn.prefix_tree import PrefixTree
from sleuth.types import SleuthError

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


TREE_ATTENTION = "sleuth_tree"
"""The name under which transformers knows `attend_tree`."""
BLOCK_TOKENS = 128
"""Tokens of FlexAttention's blocks of queries and of keys."""
Observe = Callable[[Any, Tensor, Tensor, float], None]
"""Called in each layer with its module, queries (1, H, N, D), keys (1, kv_heads, N, D) and the scale of the scores."""


class Branches:
    """A prefix tree prepared for attention, once for all layers. `output_indices` (M, ascending) are the tokens whose
    last hidden state is used; None: all.

    `observe`, if given, is called in each layer. The tree may be part of a larger one. Then `above` holds the keys and
    values of the path from the root down to it, and `boundary` receives its own for the parts below. Both work on a CPU
    only.
    """

    def __init__(
        self,
        tree: PrefixTree,
        dtype: torch.dtype,
        output_indices: Tensor | None = None,
        *,
        above: Sequence[ActivationBoundary] = (),
        boundary: ActivationBoundary | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.observe = observe
        self.output_indices, self.above, self.boundary = output_indices, above, boundary
        self.mask: BlockMask | None = None
        self.blocks: list[Block] = []
        self._tree, self._dtype = tree, dtype
        self._by_window: dict[int, Branches] = {}
        if tree.tokens.device.type == "cpu":
            self.blocks = tree_blocks(tree.ends, dtype, above=int(tree.positions[0]))
        else:
            self.mask = ancestor_block_mask(tree.ends)

    def within(self, window: int | None) -> Branches:
        """Itself, or for a layer whose tokens attend only to the last `window` tokens of longer paths, a copy."""
        if window is None or window >= self._tree.depth:
            return self
        if window not in self._by_window:
            self._by_window[window] = narrow = copy.copy(self)
            if self.mask is None:
                narrow.blocks = within_window(self.blocks, self._tree.positions, window, self._dtype)
            else:
                narrow.mask = ancestor_block_mask(self._tree.ends, self._tree.positions, window)
        return self._by_window[window]

    def for_last_layer(self) -> Branches:
        """Copy for the last layer: only output tokens, and those in narrow gaps between them, are queries."""
        assert self.output_indices is not None
        if self.mask is not None:  # FlexAttention computes all queries
            return self
        narrow = copy.copy(self)
        narrow._by_window = {}
        narrow.blocks = blocks_for_outputs(self.blocks, self.output_indices)
        return narrow

    def with_above(self, module: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values (1, kv_heads, N, D) after those of `above`; stores its own in `boundary`."""
        if self.boundary is None and not self.above:
            return key, value
        layer = module.layer_idx
        if self.boundary is not None:
            self.boundary.keep(("key", layer), key)
            self.boundary.keep(("value", layer), value)
        keys, values = ([boundary[name, layer] for boundary in self.above] for name in ("key", "value"))
        return torch.cat([*keys, key], dim=2), torch.cat([*values, value], dim=2)


def attend_tree(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    branches: Branches,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer while the learner runs.

    `query` (1, H, N, D), `key` and `value` (1, kv_heads, N, D) -> (1, N, H, D).
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise SleuthError(f"the learner has no soft caps or attention sinks: {type(module).__name__}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if branches.observe is not None:
        branches.observe(module, query, key, scale)
    branches = branches.within(sliding_window)
    if branches.mask is not None:
        output = _compiled_flex()(query, key, value, block_mask=branches.mask, scale=scale, enable_gqa=True)
        return output.transpose(1, 2), None
    key, value = branches.with_above(module, key, value)
    return BlockAttention.apply(query, key, value, branches.blocks, scale), None


class BlockAttention(torch.autograd.Function):
    """Softmax attention over blocks: (1, H, N, D) queries, (1, kv_heads, K, D) keys and values -> (1, N, H, D)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scale: float) -> Tensor:
        """Blocks with `includes_self` come first and initialise the output; the others are merged into it."""
        q, k, v = _by_kv_head(query, key, value)
        output = torch.zeros(query.transpose(1, 2).shape, dtype=query.dtype)  # (1, N, H, D); 0 without a query
        merged = output.transpose(1, 2).view(q.shape)  # (kv_heads, sharing, N, D)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))  # (kv_heads, sharing, N)
        for block in blocks:
            at = (slice(None), slice(None), block.queries)
            attended, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[at], k[:, :, block.keys], v[:, :, block.keys], 0.0, block.causal, attn_mask=block.bias, scale=scale
            )
            if block.includes_self:
                merged[at], lse[at] = attended, weight
            else:
                total = torch.logaddexp(lse[at], weight)
                share = (weight - total).exp_().unsqueeze(-1)
                merged[at].mul_((lse[at] - total).exp_().unsqueeze(-1)).add_(attended * share)
                lse[at] = total
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Adds up the gradients of all blocks, with weights normalised over all keys of a query."""
        query, key, value, output, lse = ctx.saved_tensors
        q, k, v = _by_kv_head(query, key, value)
        merged, grad_output = (tensor.transpose(1, 2).reshape(q.shape) for tensor in (output, gradients[0]))
        grad_query, grad_key, grad_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
        for block in ctx.blocks:
            at, keys = (slice(None), slice(None), block.queries), (slice(None), slice(None), block.keys)
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_output[at], q[at], k[keys], v[keys], merged[at], lse[at],
                0.0, block.causal, attn_mask=block.bias, scale=ctx.scale,
            )  # fmt: skip
            grad_query.view(q.shape)[at].add_(parts[0])
            grad_key[0, :, block.keys].add_(parts[1].sum(dim=1))
            grad_value[0, :, block.keys].add_(parts[2].sum(dim=1))
        return grad_query, grad_key, grad_value, None, None


def _by_kv_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views (kv_heads, sharing, N or K, D): heads that share keys are adjacent, and keys are not repeated in memory."""
    kv_heads, (heads, count, size) = key.shape[1], query.shape[1:]
    sharing = heads // kv_heads
    keys, values = (tensor[0, :, None].expand(kv_heads, sharing, -1, -1) for tensor in (key, value))
    return query.view(kv_heads, sharing, count, size), keys, values


def ancestor_mask_mod(
    ends: Tensor, positions: Tensor | None = None, window: int | None = None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's `mask_mod`, (batch, head, query, key) -> bool: whether the key is on the path of the query, and
    not `window` or more tokens before it."""
    if window is None or positions is None:
        return lambda batch, head, query, key: (key <= query) & (query < ends[key])
    return lambda batch, head, query, key: (
        (key <= query) & (query < ends[key]) & (positions[query] - positions[key] < window)
    )


def ancestor_block_mask(ends: Tensor, positions: Tensor | None = None, window: int | None = None) -> BlockMask:
    """FlexAttention's mask of a tree whose subtrees end at `ends` (N), and whose tokens are at `positions` (N) if there
    is a `window`: that of `create_block_mask`, which holds several bytes for each pair of tokens, computed with memory
    for pairs of blocks of 128 tokens only.

    Since subtrees are contiguous, the last end in a block of keys says which later blocks of queries see any of it, and
    the first end which see all of it. A block sees itself in part. A window hides a block of keys from a block of
    queries if it hides the last of these from the first, and shows all of it if it shows the first to the last.
    """
    size = len(ends)
    rows = -(-size // BLOCK_TOKENS)  # blocks of keys, and of queries
    by_block = F.pad(ends, (0, rows * BLOCK_TOKENS - size)).view(rows, BLOCK_TOKENS)  # 0: no token attends to it
    last, first = by_block.amax(dim=1), by_block.amin(dim=1)
    numbers = torch.arange(rows, device=ends.device)
    query, key = numbers[:, None], numbers[None]
    whole = (key < query) & (first >= (query + 1) * BLOCK_TOKENS)  # (rows, rows)
    partly = ((key < query) & (last > query * BLOCK_TOKENS) | (key == query)) & ~whole
    if window is not None and positions is not None:
        filled = torch.cat([positions, positions[-1:].expand(rows * BLOCK_TOKENS - size)]).view(rows, BLOCK_TOKENS)
        deepest, highest = filled.amax(dim=1), filled.amin(dim=1)
        shown = deepest[:, None] - highest < window
        near = (highest[:, None] - deepest < window) | (key == query)
        whole, partly = whole & shown, (partly | whole & ~shown) & near
    seen = (_in_front(partly), _in_front(whole), _in_front(partly.T), _in_front(whole.T))
    # Not by `from_kv_blocks`, which makes indices on the host: each wait for a card would leave it idle.
    return BlockMask(
        (size, size),
        *(blocks for pair in seen for blocks in pair),
        BLOCK_SIZE=(BLOCK_TOKENS, BLOCK_TOKENS),
        mask_mod=ancestor_mask_mod(ends, positions, window),
    )


def _in_front(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row (rows, rows) are true, and their numbers, in order, before those of the others; for
    one batch and one head."""
    counts = blocks.sum(dim=1, dtype=torch.int32)
    # Contiguous: of a transposed matrix the order would be transposed too, and a kernel reads it as if it were not.
    order = blocks.to(torch.uint8).contiguous().argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], order.contiguous()[None, None]


@cache
def _compiled_flex() -> Any:
    """FlexAttention by torch's own kernels, whose backward pass adds in a fixed order. Those of flash-attn-4 do not on
    Hopper, and a run would not continue to the byte."""
    return torch.compile(flex_attention, dynamic=True)


class ActivationBoundary:
    """Tensors that one part of a graph produces and another reads, by name. The reader gets detached leaves; the
    gradients accumulated in them are those of the outputs."""

    def __init__(self) -> None:
        self._outputs: dict[Hashable, Tensor] = {}
        self._leaves: dict[Hashable, Tensor] = {}

    def keep(self, name: Hashable, output: Tensor) -> None:
        """Stores an output. Ignored if the name is taken: a checkpointed layer that runs again gives the same."""
        if name not in self._outputs:
            self._outputs[name] = output
            self._leaves[name] = output.detach().requires_grad_(output.requires_grad)

    def __getitem__(self, name: Hashable) -> Tensor:
        return self._leaves[name]

    def outputs_and_grads(self) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs whose leaf has a gradient, and these gradients."""
        pairs = [(self._outputs[name], leaf.grad) for name, leaf in self._leaves.items() if leaf.grad is not None]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]


AttentionInterface.register(TREE_ATTENTION, attend_tree)
