"""Floating-point operations: the count of an update, and the rate of this machine's matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from transformers import PretrainedConfig

from benchmarks.shapes import distinct_positions, scored_tokens
from sleuth.engines.local.cache import head_size
from sleuth.kernels.matmul import HAS_ONEDNN, by_onednn
from sleuth.learn.batch import Row

MATRIX = 2_048
REPEATS = 15


def matmul_flops() -> dict[str, float]:
    """FLOP per second of a square fp32 matrix product, the median after warming up: by torch, and by oneDNN if torch
    includes it. Every peer uses the first; the larger of the two is closer to the machine's peak."""
    a, b, out = (torch.rand(MATRIX, MATRIX) for _ in range(3))
    found = {"torch": _flops(lambda: torch.mm(a, b, out=out))}
    if HAS_ONEDNN:
        found["onednn"] = _flops(lambda: by_onednn(a, b))
    return found


def _flops(product: Callable[[], torch.Tensor]) -> float:
    seconds = []
    for _ in range(2 * REPEATS):
        started = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX**3 / statistics.median(seconds[REPEATS:])


def update_flops(rows: Sequence[Row], config: PretrainedConfig, *, frozen: bool = False) -> float:
    """The minimum operations of one forward and backward pass, with each distinct token computed once.

    Two for each weight and token, two for each of the two products of attention with every attended token; the backward
    pass is twice the forward pass, and as much as it where the matrices are `frozen`, as with adapters. The vocabulary
    is projected for trained tokens only. Recomputation, norms, softmax, adapters and the optimiser are not counted.
    """
    head_dim = head_size(config)
    heads = config.num_attention_heads * head_dim
    attention = config.hidden_size * (2 * heads + 2 * config.num_key_value_heads * head_dim)
    weights = config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    positions = distinct_positions(rows)
    seen = sum(position + 1 for position in positions)
    head = 2 * config.hidden_size * config.vocab_size * scored_tokens(rows)
    products = 2 * weights * len(positions) + head
    return (2.0 if frozen else 3.0) * products + 3.0 * 4 * config.num_hidden_layers * heads * seen
