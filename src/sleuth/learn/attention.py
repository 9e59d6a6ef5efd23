"""Attention over a prefix tree: every token sees the tokens on its own path, and no mask wider than a bush is built.

On a CPU the tree is cut into blocks. What a token gathered from several of them is merged by log-sum-exp. The
backward pass runs over the same blocks with the merged output and log-sum-exp, which makes the gradient of each block
exact (as in ring attention, arXiv:2310.01889). On other devices FlexAttention (arXiv:2412.05496) takes the ancestor
test as its mask.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

from sleuth.learn.prefix_tree import PrefixTree
from sleuth.types import SleuthError

TREE_ATTENTION = "sleuth_tree"
"""The name under which transformers knows `attend_tree`."""


class Branches:
    """A prefix tree as attention needs it, prepared once and used by every layer. `wanted` (M, rising) are the tokens
    that are looked at in the end, None: all.

    The tree may be a limb of a larger one: then it grows out of the tokens whose keys and values are in `above`, path
    down. What grows out of it in turn reads its own from `boundary`. Both on a CPU alone.
    """

    def __init__(
        self,
        tree: PrefixTree,
        dtype: torch.dtype,
        wanted: Tensor | None = None,
        *,
        above: Sequence[ActivationBoundary] = (),
        boundary: ActivationBoundary | None = None,
    ) -> None:
        self.depth = int(tree.positions.max()) + 1
        self.wanted, self.above, self.boundary = wanted, above, boundary
        self.mask: BlockMask | None = None
        self.blocks: list[Block] = []
        if tree.tokens.device.type == "cpu":
            self.blocks = tree_blocks(tree.ends, dtype, above=int(tree.positions[0]))
        else:
            self.mask = _flex_mask(tree.ends)

    def narrowed(self) -> Branches:
        """For the last layer: only wanted tokens, and those in narrow gaps between them, look at others."""
        assert self.wanted is not None
        if self.mask is not None:  # which knows no such thing: those that nobody wants look too
            return self
        narrow = copy.copy(self)
        narrow.blocks = narrowed(self.blocks, self.wanted)
        return narrow

    def with_above(self, module: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (1, kv_heads, N, D) of a layer, behind those above; kept for what grows out of them."""
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
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer while the learner runs.

    `query` (1, H, N, D), `key` and `value` (1, kv_heads, N, D) -> (1, N, H, D).
    """
    window = options.get("sliding_window")
    if window is not None and window < branches.depth:
        raise SleuthError(
            f"{type(module).__name__} sees only the last {window} tokens, and an episode has {branches.depth}: "
            "the learner has no sliding windows; keep episodes within the window, or take another model"
        )
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise SleuthError(f"the learner has no soft caps or attention sinks: {type(module).__name__}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if branches.mask is not None:
        output = _compiled_flex()(query, key, value, block_mask=branches.mask, scale=scale, enable_gqa=True)
        return output.transpose(1, 2), None
    key, value = branches.with_above(module, key, value)
    return BlockAttention.apply(query, key, value, branches.blocks, scale), None


class BlockAttention(torch.autograd.Function):
    """Softmax attention over blocks: (1, H, N, D) queries, (1, kv_heads, K, D) keys and values -> (1, N, H, D)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scale: float) -> Tensor:
        """Blocks in which tokens see themselves come first: they fill, the others are merged in."""
        q, k, v = _by_kv_head(query, key, value)
        output = torch.zeros(query.transpose(1, 2).shape, dtype=query.dtype)  # (1, N, H, D); 0 where nothing looks
        merged = output.transpose(1, 2).view(q.shape)  # (kv_heads, sharing, N, D)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))  # (kv_heads, sharing, N)
        for block in blocks:
            at = (slice(None), slice(None), block.queries)
            seen, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[at], k[:, :, block.keys], v[:, :, block.keys], 0.0, block.causal, attn_mask=block.bias, scale=scale
            )
            if block.own:
                merged[at], lse[at] = seen, weight
            else:
                both = torch.logaddexp(lse[at], weight)
                merged[at].mul_((lse[at] - both).exp_().unsqueeze(-1)).add_(seen * (weight - both).exp_().unsqueeze(-1))
                lse[at] = both
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """The gradient of each block, as if its weights had been normalised by all that its tokens saw."""
        query, key, value, output, lse = ctx.saved_tensors
        q, k, v = _by_kv_head(query, key, value)
        merged, arrived = (tensor.transpose(1, 2).reshape(q.shape) for tensor in (output, gradients[0]))
        of_query, of_key, of_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
        for block in ctx.blocks:
            at, seen = (slice(None), slice(None), block.queries), (slice(None), slice(None), block.keys)
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                arrived[at], q[at], k[seen], v[seen], merged[at], lse[at],
                0.0, block.causal, attn_mask=block.bias, scale=ctx.scale,
            )  # fmt: skip
            of_query.view(q.shape)[at].add_(parts[0])
            of_key[0, :, block.keys].add_(parts[1].sum(dim=1))
            of_value[0, :, block.keys].add_(parts[2].sum(dim=1))
        return of_query, of_key, of_value, None, None


def _by_kv_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(kv_heads, sharing, N or K, D) each: heads that share keys side by side, and no key is repeated in memory."""
    kv_heads, (heads, count, size) = key.shape[1], query.shape[1:]
    sharing = heads // kv_heads
    keys, values = (tensor[0, :, None].expand(kv_heads, sharing, -1, -1) for tensor in (key, value))
    return query.view(kv_heads, sharing, count, size), keys, values


def ancestor_test(ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a key is on the path of a query, as FlexAttention asks: (batch, head, query, key) -> bool."""
    return lambda batch, head, query, key: (key <= query) & (query < ends[key])


def _flex_mask(ends: Tensor) -> BlockMask:
    return create_block_mask(ancestor_test(ends), None, None, len(ends), len(ends), device=str(ends.device))


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(TREE_ATTENTION, attend_tree)


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


class ActivationBoundary:
    """Tensors that one side makes and the other reads, by name. The other reads leaves; the gradient that gathers in a
    leaf is what the made tensor is owed."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Tensor] = {}
        self._leaves: dict[Hashable, Tensor] = {}

    def keep(self, name: Hashable, made: Tensor) -> None:
        """Made on this side. What is made again (by a layer that runs a second time) is the same, and not needed."""
        if name not in self._made:
            self._made[name] = made
            self._leaves[name] = made.detach().requires_grad_(made.requires_grad)

    def __getitem__(self, name: Hashable) -> Tensor:
        return self._leaves[name]

    def owed(self) -> tuple[list[Tensor], list[Tensor]]:
        """What was made and has a gradient by now, and the gradients."""
        owed = [(self._made[name], leaf.grad) for name, leaf in self._leaves.items() if leaf.grad is not None]
        return [made for made, _ in owed], [gradient for _, gradient in owed]
