"""Causal attention of the tokens of prompts, read in chunks, to the keys in their pages, by one Triton kernel
(arXiv:2205.14135, with pages as in arXiv:2309.06180).

A program has the query heads that share a KV head of as many tokens as fill a tile, so each key is read once for all of
them, where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

TILE, EXACT_TILE = 128, 32
"""Queries of a program, in half precision and in fp32, whose keys take twice the memory of a processor."""
BLOCK = 64
"""Keys that a program reads at once, or those of a page that has fewer; a larger page is a multiple."""
LOG2_E = 1.4426950408889634
jit = cast(Callable[[Any], Any], triton.jit)  # its functions take tensors as pointers, and a grid in brackets


def tile_tokens(dtype: torch.dtype, sharing: int) -> int:
    """Tokens of a program, where `sharing` query heads share a KV head."""
    return max(1, (TILE if dtype.itemsize <= 2 else EXACT_TILE) // sharing)


def attend_to_prompts(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    tiles: Tensor,
    scale: float,
    window: int | None,
    output: Tensor,
) -> None:
    """Fills `output` (T, kv_heads, sharing, D). `query` is of the same shape, `keys` and `values` [kv_heads, pages,
    page_size, D], `pages` (C, n) int32 those of each chunk. A tile of `tiles` (J, 4) int32 has the tokens of a chunk:
    its number, their first one among the T, the position of that, and their count, at most `tile_tokens`. A token
    attends to the keys up to itself, with a `window` to the last so many."""
    _, kv_heads, sharing, size = query.shape
    query = query if query.stride(-1) == 1 else query.contiguous()
    strides = dict(zip(("query_token", "query_kv", "query_head"), query.stride(), strict=False))
    tile = triton.next_power_of_2(max(16, tile_tokens(query.dtype, sharing) * sharing))
    width = max(16, triton.next_power_of_2(size))
    shapes: dict[str, Any] = {"kv_heads": kv_heads, "sharing": sharing, "size": size, "width": width, "tile": tile}
    shapes |= {"page_size": keys.shape[2], "block": min(BLOCK, keys.shape[2]), "windowed": window is not None}
    _attend_tile[len(tiles), kv_heads](
        query, keys, values, pages, tiles, output, scale * LOG2_E, window or 0, key_kv=keys.stride(0),
        page_row=pages.stride(0), **strides, **shapes, num_warps=8 if tile >= 128 else 4, num_stages=2,
    )  # fmt: skip


@jit
def _attend_tile(
    query, keys, values, pages, tiles, output, scale, window, query_token, query_kv, query_head, key_kv, page_row,
    kv_heads: tl.constexpr, sharing: tl.constexpr, size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    page_size: tl.constexpr, block: tl.constexpr, windowed: tl.constexpr,
):  # fmt: skip
    job, kv = tiles + 4 * tl.program_id(0), tl.program_id(1)
    chunk, first, start, count = tl.load(job).to(tl.int64), tl.load(job + 1), tl.load(job + 2), tl.load(job + 3)
    index, at, key = tl.arange(0, tile), tl.arange(0, width), tl.arange(0, block)
    member, head = index // sharing, index % sharing
    is_row, is_number, position = member < count, at < size, start + member
    token = (first + member).to(tl.int64)
    inside = is_row[:, None] & is_number[None, :]
    where = query + (token * query_token + kv * query_kv + head * query_head)[:, None] + at[None, :]
    asked = tl.load(where, mask=inside, other=0.0)
    pages += chunk * page_row
    keys += key_kv.to(tl.int64) * kv
    values += key_kv.to(tl.int64) * kv
    largest = tl.full([tile], -1e30, tl.float32)  # less than any score, and no infinity
    total = tl.zeros([tile], tl.float32)
    sums = tl.zeros([tile, width], tl.float32)
    begin = 0
    if windowed:
        begin = tl.maximum(start - window + 1, 0) // block * block
    for at_key in range(begin, start + count, block):
        page = tl.load(pages + at_key // page_size).to(tl.int64)
        place = ((page * page_size + at_key % page_size + key) * size)[:, None] + at[None, :]
        own_keys = tl.load(keys + place, mask=is_number[None, :], other=0.0)
        scores = tl.dot(asked, tl.trans(own_keys), input_precision="ieee") * scale
        behind = position[:, None] - (at_key + key)[None, :]
        if windowed:
            scores = tl.where((behind >= 0) & (behind < window), scores, float("-inf"))
        else:
            scores = tl.where(behind >= 0, scores, float("-inf"))
        now_largest = tl.maximum(largest, tl.max(scores, 1))
        shares = tl.exp2(scores - now_largest[:, None])
        before = tl.exp2(largest - now_largest)
        own_values = tl.load(values + place, mask=is_number[None, :], other=0.0)
        sums = sums * before[:, None] + tl.dot(shares.to(own_values.dtype), own_values, input_precision="ieee")
        total = total * before + tl.sum(shares, 1)
        largest = now_largest
    where = output + ((token * kv_heads + kv) * sharing + head)[:, None] * size + at[None, :]
    tl.store(where, (sums / total[:, None]).to(output.dtype.element_ty), mask=inside)
