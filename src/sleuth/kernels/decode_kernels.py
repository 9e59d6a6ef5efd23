"""Attention of one new token per sequence to the keys in its pages, by two Triton kernels (arXiv:2309.06180, with the
keys of a long sequence in parts as in arXiv:2311.01282).

Of a part of `PART` keys one program computes the outputs of all query heads that share a KV head, so each key is read
once; a second kernel weighs the parts. Which parts there are depends on a sequence's own length alone, so its numbers
are the same in whatever batch it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

PART = 512
"""Keys of a part: enough programs for a card where sequences are few, few enough to weigh where they are many."""
BLOCK = 64
"""Keys that a program reads at once, or those of a page that has fewer; a larger page is a multiple."""
WARPS = {"num_warps": 4, "num_stages": 3}
LOG2_E = 1.4426950408889634
jit = cast(Callable[[Any], Any], triton.jit)  # its functions take tensors as pointers, and a grid in brackets


def attend_by_pages(
    query: Tensor, keys: Tensor, values: Tensor, pages: Tensor, lengths: Tensor, longest: int, scale: float, window: int
) -> Tensor:
    """`query` (B, kv_heads, sharing, D), `keys` and `values` [kv_heads, pages, page_size, D], `pages` (B, n) int32,
    `lengths` (B) int32, none above `longest`: sequence b attends to the last `window` of its first `lengths[b]` keys.
    Returns (B, kv_heads, sharing, D)."""
    rows, kv_heads, sharing, size = query.shape
    page_size, parts = keys.shape[2], -(-longest // PART)
    query = query if query.stride(-1) == 1 else query.contiguous()
    output = query.new_empty(query.shape)
    partial = torch.empty(rows, kv_heads, parts, sharing, size, dtype=torch.float32, device=query.device)
    weights = torch.empty(rows, kv_heads, parts, sharing, dtype=torch.float32, device=query.device)
    both: dict[str, Any] = {
        "weights": weights,
        "lengths": lengths,
        "length_row": lengths.stride(0),
        "window": window,
        "sharing": sharing,
        "size": size,
        "part_keys": PART,
        "heads": max(16, triton.next_power_of_2(sharing)),  # the least rows of a product on matrix units
        "width": max(16, triton.next_power_of_2(size)),
    }
    strides = dict(zip(("query_row", "query_kv", "query_head"), query.stride(), strict=False))
    strides |= {"key_kv": keys.stride(0), "page_row": pages.stride(0)}
    tensors = {"query": query, "keys": keys, "values": values, "pages": pages}
    options = {"page_size": page_size, "block": min(BLOCK, page_size), "only": parts == 1} | WARPS
    outputs = output if parts == 1 else partial
    _attend_part[rows, kv_heads, parts](**tensors, outputs=outputs, scale=scale * LOG2_E, **strides, **both, **options)
    if parts > 1:
        _weigh_parts[rows, kv_heads](partial=partial, outputs=output, parts=parts, **both, num_warps=2)
    return output


@jit
def _attend_part(
    query, keys, values, pages, lengths, outputs, weights, scale, window,
    query_row, query_kv, query_head, key_kv, page_row, length_row,
    page_size: tl.constexpr, block: tl.constexpr, only: tl.constexpr, sharing: tl.constexpr, size: tl.constexpr,
    part_keys: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The outputs of a part of the keys of a sequence and a KV head, and the base-2 logarithms of the parts' sums."""
    row, kv, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row.to(tl.int64) * length_row)
    first = tl.maximum(length - window, 0)
    begin = tl.maximum(part * part_keys, first // block * block)
    end = tl.minimum(length, (part + 1) * part_keys)
    if begin >= end:
        return
    head, at, key = tl.arange(0, heads), tl.arange(0, width), tl.arange(0, block)
    is_head, is_number = head < sharing, at < size
    where = query + row.to(tl.int64) * query_row + kv * query_kv + head[:, None] * query_head + at[None, :]
    asked = tl.load(where, mask=is_head[:, None] & is_number[None, :], other=0.0)
    keys += kv.to(tl.int64) * key_kv
    values += kv.to(tl.int64) * key_kv
    largest = tl.full([heads], float("-inf"), tl.float32)
    total = tl.zeros([heads], tl.float32)
    output = tl.zeros([heads, width], tl.float32)
    for start in range(begin, end, block):
        page = tl.load(pages + row.to(tl.int64) * page_row + start // page_size).to(tl.int64)
        place = (page * page_size + start % page_size + key) * size  # pyright: ignore[reportOperatorIssue]
        own_keys = tl.load(keys + place[None, :] + at[:, None], mask=is_number[:, None], other=0.0)
        scores = tl.dot(asked, own_keys, input_precision="ieee") * scale
        position = start + key
        scores = tl.where(((position >= first) & (position < end))[None, :], scores, float("-inf"))
        now_largest = tl.maximum(largest, tl.max(scores, 1))
        shares = tl.exp2(scores - now_largest[:, None])
        before = tl.exp2(largest - now_largest)
        own_values = tl.load(values + place[:, None] + at[None, :], mask=is_number[None, :], other=0.0)
        output *= before[:, None]
        output += tl.dot(shares.to(own_values.dtype), own_values, input_precision="ieee")
        total = total * before + tl.sum(shares, 1)
        largest = now_largest
    output /= total[:, None]
    group = row.to(tl.int64) * tl.num_programs(1) + kv
    if not only:
        group = group * tl.num_programs(2) + part
        tl.store(weights + group * sharing + head, largest + tl.log2(total), mask=is_head)
    where = outputs + (group * sharing + head[:, None]) * size + at[None, :]
    tl.store(where, output.to(outputs.dtype.element_ty), mask=is_head[:, None] & is_number[None, :])


@jit
def _weigh_parts(
    partial, weights, lengths, outputs, window, length_row,
    parts: tl.constexpr, sharing: tl.constexpr, size: tl.constexpr, part_keys: tl.constexpr, heads: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """The outputs of a sequence and a KV head from those of its parts."""
    row, kv = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row.to(tl.int64) * length_row)
    first = tl.maximum(length - window, 0)
    head, at = tl.arange(0, heads), tl.arange(0, width)
    is_head, is_number = head < sharing, at < size
    group = row.to(tl.int64) * tl.num_programs(1) + kv
    largest = tl.full([heads], float("-inf"), tl.float32)
    total = tl.zeros([heads], tl.float32)
    output = tl.zeros([heads, width], tl.float32)
    for part in range(first // part_keys, tl.cdiv(length, part_keys)):
        place = (group * parts + part) * sharing + head
        weight = tl.load(weights + place, mask=is_head, other=0.0)
        where = partial + place[:, None] * size + at[None, :]
        own = tl.load(where, mask=is_head[:, None] & is_number[None, :], other=0.0)
        now_largest = tl.maximum(largest, weight)
        share, before = tl.exp2(weight - now_largest), tl.exp2(largest - now_largest)
        output = output * before[:, None] + own * share[:, None]
        total = total * before + share
        largest = now_largest
    where = outputs + (group * sharing + head[:, None]) * size + at[None, :]
    output /= total[:, None]
    tl.store(where, output.to(outputs.dtype.element_ty), mask=is_head[:, None] & is_number[None, :])
