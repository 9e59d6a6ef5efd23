"""`lean_layers` as Triton kernels, one launch each: a card waits for memory in all of them, and each number is read and
written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

GATES = 1024
"""Gates of a program."""
jit = cast(Callable[[Any], Any], triton.jit)  # its functions take tensors as pointers, and a grid in brackets


def add_norm(hidden: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """As `lean_layers.add_norm`."""
    rows, count = hidden.shape
    output = hidden.new_empty(rows, count)
    width = triton.next_power_of_2(count)
    sizes: dict[str, Any] = {"count": count, "width": width, "adds": update is not None}
    _add_norm[(rows,)](hidden, update, weight, output, epsilon, **sizes, num_warps=4 if width <= 2048 else 8)
    return output


@jit
def _add_norm(hidden, update, weight, output, epsilon, count: tl.constexpr, width: tl.constexpr, adds: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * count, tl.arange(0, width)
    inside = at < count
    numbers = tl.load(hidden + row + at, mask=inside, other=0.0).to(tl.float32)
    if adds:
        added = numbers + tl.load(update + row + at, mask=inside, other=0.0).to(tl.float32)
        rounded = added.to(hidden.dtype.element_ty)
        tl.store(hidden + row + at, rounded, mask=inside)
        numbers = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / count + epsilon)
    normed = numbers * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row + at, normed.to(output.dtype.element_ty), mask=inside)


def swish_product(gate_up: Tensor) -> Tensor:
    """As `lean_layers.swish_product`."""
    rows, count = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty(rows, count)
    _swish_product[rows, triton.cdiv(count, GATES)](gate_up, output, count=count, width=GATES, num_warps=4)
    return output


@jit
def _swish_product(gate_up, output, count: tl.constexpr, width: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * width + tl.arange(0, width)
    inside = at < count
    gate = tl.load(gate_up + row * 2 * count + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * count + count + at, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1 + tl.exp(-gate)) * up
    tl.store(output + row * count + at, product.to(output.dtype.element_ty), mask=inside)


def swish_product_grads(gate_up: Tensor, gradient: Tensor) -> Tensor:
    """As `lean_layers.swish_product_grads`."""
    rows, count = gradient.shape
    output = gate_up.new_empty(gate_up.shape)
    grid = rows, triton.cdiv(count, GATES)
    _swish_product_grads[grid](gate_up, gradient, output, count=count, width=GATES, num_warps=4)
    return output


@jit
def _swish_product_grads(gate_up, gradient, output, count: tl.constexpr, width: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * width + tl.arange(0, width)
    inside, place = at < count, row * 2 * count + at
    gate = tl.load(gate_up + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + count, mask=inside, other=0.0).to(tl.float32)
    arrived = tl.load(gradient + row * count + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-gate))
    of_gate = arrived * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(output + place, of_gate.to(output.dtype.element_ty), mask=inside)
    tl.store(output + place + count, (arrived * gate * sigmoid).to(output.dtype.element_ty), mask=inside)


def rotate_and_write(
    product: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    pages: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """As `lean_layers.rotate_and_write`."""
    kv_heads, _, page_size, size = keys.shape
    heads = product.shape[1] // size - 2 * kv_heads
    query = product.new_empty(len(product), heads, size)
    query_weight, key_weight = norms or (None, None)
    sizes: dict[str, Any] = {"kv_heads": kv_heads, "size": size, "page_size": page_size, "sharing": heads // kv_heads}
    sizes |= {"tile": triton.next_power_of_2(kv_heads), "half": triton.next_power_of_2(size // 2)}
    _rotate_and_write[len(product), heads // kv_heads + 2](
        product, cos, sin, query_weight, key_weight, pages, positions, query, keys, values, epsilon, keys.stride(0),
        product.stride(0), cos.stride(0), **sizes, normed=norms is not None, num_warps=2,
    )  # fmt: skip
    return query


@jit
def _rotate_and_write(
    product, cos, sin, query_weight, key_weight, pages, positions, query, keys, values, epsilon, key_kv, product_row,
    angle_row, kv_heads: tl.constexpr, size: tl.constexpr, page_size: tl.constexpr, sharing: tl.constexpr,
    tile: tl.constexpr, half: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    """`kv_heads` heads of a token: of the queries in the first `sharing` programs, then those of keys and values."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, at = tl.arange(0, tile), tl.arange(0, half)
    inside = (head < kv_heads)[:, None] & (at < size // 2)[None, :]
    own = (part * kv_heads + head)[:, None] * size + at[None, :]
    first = tl.load(product + token * product_row + own, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(product + token * product_row + own + size // 2, mask=inside, other=0.0).to(tl.float32)
    is_number = at < size // 2
    if part <= sharing:
        if normed:
            weight = query_weight
            if part == sharing:
                weight = key_weight
            scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / size + epsilon)[:, None]
            first *= scale * tl.load(weight + at, mask=is_number, other=0.0).to(tl.float32)[None, :]
            second *= scale * tl.load(weight + at + size // 2, mask=is_number, other=0.0).to(tl.float32)[None, :]
        turn = tl.load(cos + token * angle_row + at, mask=is_number, other=0.0).to(tl.float32)[None, :]
        slant = tl.load(sin + token * angle_row + at, mask=is_number, other=0.0).to(tl.float32)[None, :]
        turned = first * turn - second * slant
        second = second * turn + first * slant
        first = turned
    if part < sharing:
        target = query + token * sharing * kv_heads * size + own
    else:
        page, position = tl.load(pages + token), tl.load(positions + token)
        place = (page * page_size + position % page_size) * size
        target = keys
        if part > sharing:
            target = values
        target += head.to(tl.int64)[:, None] * key_kv + place + at[None, :]
    tl.store(target, first.to(query.dtype.element_ty), mask=inside)
    tl.store(target + size // 2, second.to(query.dtype.element_ty), mask=inside)
