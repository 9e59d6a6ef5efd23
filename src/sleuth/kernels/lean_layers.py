"""What a decoder layer computes between its products with weights, in plain torch. `layer_kernels` has the same
functions as Triton kernels for a card, one launch each.

All is computed in fp32 and rounded once, as in the learner's fused layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sleuth.kernels.matmul import precision_of

TOLERANCE = 0.01
"""Relative error of a kernel's outputs beside plain torch's, where bf16 rounds each number by up to 0.4 %."""


def add_norm(hidden: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Adds `update` to `hidden` (..., n), in place and rounded; returns its RMS norm with `weight` (n): (..., n)."""
    if update is not None:
        hidden.add_(update)
    exact = hidden.to(precision_of(hidden))
    scale = torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + epsilon)
    return (exact * scale * weight).to(hidden.dtype)


def swish_product(gate_up: Tensor) -> Tensor:
    """gate / (1 + exp(-gate)) * up of `gate_up` (T, 2m), which has all gates first: (T, m)."""
    gate, up = gate_up.to(precision_of(gate_up)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def swish_product_grads(gate_up: Tensor, gradient: Tensor) -> Tensor:
    """From the gradient (T, m) of `swish_product`: that of `gate_up` (T, 2m). d silu(x) / dx = s (1 + x (1 - s)) with
    the sigmoid s."""
    gate, up = gate_up.to(precision_of(gate_up)).chunk(2, dim=-1)
    sigmoid = gate.sigmoid()
    of_gate = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([of_gate, gradient * gate * sigmoid], dim=-1).to(gate_up.dtype)


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
    """Turns the queries and keys of `product` (T, heads * D: queries, keys, values) by the angles `cos` and `sin`
    (T, D), after their norms with two weights (D), if there are any. Writes keys and values to the cache's `keys` and
    `values` [kv_heads, pages, page_size, D], in `pages` (T) at `positions` (T). Returns the queries (T, H, D)."""
    kv_heads, count, page_size, size = keys.shape
    heads = product.view(len(product), -1, size)
    query, key, value = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        query, key = (add_norm(one, None, weight, epsilon) for one, weight in zip((query, key), norms, strict=True))
    rows = pages * page_size + positions % page_size
    for cache, new in ((keys, _turned(key, cos, sin)), (values, value)):
        cache.view(kv_heads, count * page_size, size).index_copy_(1, rows, new.transpose(0, 1))
    return _turned(query, cos, sin)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (T, H, D), whose second half is turned with its first."""
    exact = heads.to(precision_of(heads))
    first, second = exact.chunk(2, dim=-1)
    return (exact * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]).to(heads.dtype)
