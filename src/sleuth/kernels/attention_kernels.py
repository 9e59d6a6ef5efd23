"""Attention to the keys in their pages (arXiv:2309.06180) by Triton kernels: of one new token per sequence, and of the
tokens of prompts.

While decoding, the first of two kernels computes the outputs of jobs, which the host lists: a part of `PART` keys
(arXiv:2311.01282) for all query heads of a KV head of the sequences that share it (arXiv:2402.05099). The second weighs
the parts of each sequence. Where parts begin depends on a key's position alone, and a sequence's sums on no other's, so
its numbers are the same in whatever batch it is decoded.

Prompts are read in chunks, causally (arXiv:2205.14135). A program has the query heads that share a KV head of as many
tokens as fill a tile, so each key is read once for all of them, where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from sleuth.kernels.decode_attention import PART, SIBLINGS

BLOCK = 2**14
"""Bytes of keys that a program reads at once, or those of a page that has fewer; a larger page is a multiple."""
WARPS = {"num_warps": 4, "num_stages": 5}
"""With these stages a program reads two blocks ahead, as it looks up their pages before that. It takes 72 kB of a
processor's memory in bf16, and three fit an H100's."""
PROGRAMS = 12
"""Programs of the first kernel for each processor of a card, several times those that fit at once: jobs take unequal
time, and the card starts the next program where one ends."""
WEIGHED = 4096
"""Numbers of parts that a program of the second kernel weighs at once."""
TILE, EXACT_TILE = 128, 32
"""Queries of a program, in half precision and in fp32, whose keys take twice the memory of a processor."""
PROMPT_BLOCK = 64
"""Keys that a program reads at once, or those of a page that has fewer; a larger page is a multiple."""
LOG2_E = 1.4426950408889634
jit = cast(Callable[[Any], Any], triton.jit)  # its functions take tensors as pointers, and a grid in brackets


def attend_by_pages(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    jobs: Tensor,
    scale: float,
    window: int,
    output: Tensor | None = None,
) -> Tensor:
    """`query` (B, kv_heads, sharing, D), `keys` and `values` [kv_heads, pages, page_size, D], `table` (B, 2 + n) and
    `jobs` (1 + J, 3) as by `pack_parts`: each sequence attends to the last `window` of its keys. Returns (B, kv_heads,
    sharing, D), which is `output`, if given."""
    rows, kv_heads, sharing, size = query.shape
    page_size, heads = keys.shape[2], kv_heads * sharing
    parts = -(-(table.shape[1] - 2) * page_size // PART)
    query = query if query.stride(-1) == 1 else query.contiguous()
    output = query.new_empty(query.shape) if output is None else output
    partial = torch.empty(rows, parts, heads, size, dtype=torch.float32, device=query.device)
    weights = torch.empty(rows, parts, heads, dtype=torch.float32, device=query.device)
    tile = 16 if sharing <= 2 else max(32, triton.next_power_of_2(sharing))  # 16: the least rows on matrix units
    goes = triton.cdiv(SIBLINGS, tile // sharing)
    width = max(16, triton.next_power_of_2(size))
    both = {"table": table, "partial": partial, "weights": weights, "table_row": table.stride(0), "parts": parts}
    both |= {"window": window, "size": size, "width": width, "part_keys": PART}
    strides = dict(zip(("query_row", "query_kv", "query_head"), query.stride(), strict=False))
    strides |= {"key_kv": keys.stride(0)}
    shapes = {"kv_heads": kv_heads, "sharing": sharing, "tile": tile, "goes": goes, "page_size": page_size}
    tensors: dict[str, Any] = {"query": query, "keys": keys, "values": values, "jobs": jobs}
    programs = min(_programs(query.device), rows * parts * goes * kv_heads)
    block = min(page_size, max(16, BLOCK // (width * keys.element_size())))
    options = {"block": block, "scale": scale * LOG2_E} | WARPS
    _attend_parts[(programs,)](**tensors, **both, **strides, **shapes, **options)
    _weigh_parts[rows, heads](outputs=output, **both, at_once=min(32, WEIGHED // width), num_warps=4)
    return output


@cache
def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # of an interpreter
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


@jit
def _attend_parts(
    query, keys, values, table, jobs, partial, weights, scale, window,
    query_row, query_kv, query_head, key_kv, table_row, parts,
    kv_heads: tl.constexpr, sharing: tl.constexpr, size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    goes: tl.constexpr, part_keys: tl.constexpr, page_size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The outputs of the jobs' parts for each sequence and query head, and the base-2 logarithms of the parts' sums. A
    job has as many goes as its sequences' heads fill tiles."""
    members: tl.constexpr = tile // sharing
    index, at, key = tl.arange(0, tile), tl.arange(0, width), tl.arange(0, block)
    member, head = index // sharing, index % sharing
    is_number, in_block = at < size, key[:, None] * size + at[None, :]
    for item in range(tl.program_id(0), tl.load(jobs) * (goes * kv_heads), tl.num_programs(0)):
        kv, go = item % kv_heads, item // kv_heads % goes
        job = jobs + 3 + 3 * (item // (kv_heads * goes))
        part, first_row = tl.load(job), tl.load(job + 1)
        number = go * members + member
        is_row = (member < members) & (number < tl.load(job + 2))
        of_row = (first_row + number).to(tl.int64)  # pyright: ignore[reportAttributeAccessIssue]
        row = tl.load(table + of_row * table_row, mask=is_row, other=0).to(tl.int64)
        length = tl.load(table + of_row * table_row + 1, mask=is_row, other=0)
        first = tl.maximum(length - window, 0)
        end = tl.minimum(tl.max(length, 0), (part + 1) * part_keys)
        begin = tl.maximum(part * part_keys, tl.min(tl.where(is_row, first, end), 0) // block * block)
        if begin < end:
            where = query + (row * query_row + kv * query_kv + head * query_head)[:, None] + at[None, :]
            asked = tl.load(where, mask=is_row[:, None] & is_number[None, :], other=0.0)
            largest = tl.full([tile], -1e30, tl.float32)  # less than any score, and no infinity
            total = tl.zeros([tile], tl.float32)
            output = tl.zeros([tile, width], tl.float32)
            pages = table + first_row.to(tl.int64) * table_row + 2
            for start in range(begin, end, block):
                page = tl.load(pages + start // page_size).to(tl.int64)
                place = key_kv.to(tl.int64) * kv + (page * page_size + start % page_size) * size
                position = start + key
                is_read = (position < end)[:, None] & is_number[None, :]
                own_keys = tl.load(keys + place + in_block, mask=is_read, other=0.0)
                own_values = tl.load(values + place + in_block, mask=is_read, other=0.0)
                scores = tl.dot(asked, tl.trans(own_keys), input_precision="ieee") * scale
                is_seen = (position[None, :] >= first[:, None]) & (position[None, :] < length[:, None])
                scores = tl.where(is_seen, scores, float("-inf"))
                now_largest = tl.maximum(largest, tl.max(scores, 1))
                shares = tl.exp2(scores - now_largest[:, None])
                before = tl.exp2(largest - now_largest)
                output *= before[:, None]
                output += tl.dot(shares.to(own_values.dtype), own_values, input_precision="ieee")
                total = total * before + tl.sum(shares, 1)
                largest = now_largest
            total = tl.maximum(total, 1.0)  # changes none but those of tiles without keys
            place = (of_row * parts + part) * (kv_heads * sharing) + kv * sharing + head
            tl.store(weights + place, largest + tl.log2(total), mask=is_row)
            where = partial + place[:, None] * size + at[None, :]
            tl.store(where, output / total[:, None], mask=is_row[:, None] & is_number[None, :])


@jit
def _weigh_parts(
    table, partial, weights, outputs, window, table_row, parts,
    size: tl.constexpr, width: tl.constexpr, part_keys: tl.constexpr, at_once: tl.constexpr,
):  # fmt: skip
    """The output of a sequence and a query head from those of its parts, a few at once."""
    of_row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    row = tl.load(table + of_row * table_row).to(tl.int64)
    length = tl.load(table + of_row * table_row + 1)
    count = tl.cdiv(length, part_keys)
    number, at = tl.arange(0, at_once), tl.arange(0, width)
    is_number = at < size
    largest, total = tl.full([], -1e30, tl.float32), tl.full([], 0.0, tl.float32)
    output = tl.zeros([width], tl.float32)
    for begin in range(tl.maximum(length - window, 0) // part_keys, count, at_once):
        part = begin + number
        place = (of_row * parts + part) * heads + head
        weight = tl.load(weights + place, mask=part < count, other=float("-inf"))
        where = partial + place[:, None] * size + at[None, :]
        own = tl.load(where, mask=(part < count)[:, None] & is_number[None, :], other=0.0)
        now_largest = tl.maximum(largest, tl.max(weight, 0))
        share, before = tl.exp2(weight - now_largest), tl.exp2(largest - now_largest)
        output = output * before + tl.sum(own * share[:, None], 0)
        total = total * before + tl.sum(share, 0)
        largest = now_largest
    where = outputs + (row * heads + head) * size + at
    tl.store(where, (output / total).to(outputs.dtype.element_ty), mask=is_number)


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
    shapes |= {"page_size": keys.shape[2], "block": min(PROMPT_BLOCK, keys.shape[2]), "windowed": window is not None}
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
