"""Attention of rows that write a token each, over the keys of their own: compiled for CPUs, row by row.

Each row has its own keys, few and of its own number, and between the rows lie the keys of idle slots. For a library's
call they would be padded to one length and idle slots read in vain; a loop reads exactly what is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
LEAST_EXPONENT = np.float32(-126)  # of the powers of two that fp32 holds at full precision
FACTORS = tuple(
    np.float32(factor)
    for factor in (
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    )
)
ROUNDING = {"contract", "reassoc", "arcp", "nsz"}
"""What the compiler may do to a sum, so that it is done in vectors. Infinities and NaN stay what they are."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """At the first call, or found beside this file, where it was left the last time."""
    how: dict[str, Any] = {"nogil": True, "fastmath": ROUNDING, "error_model": "numpy"}
    try:
        return njit(function, cache=True, **how)
    except RuntimeError:  # neither that folder nor the user's can be written to: it is compiled once a process
        return njit(function, **how)


class OwnKeys:
    """Rows b of a batch, each with the keys from `begins[b]` up to `lengths[b]`, that one included, of `slots[b]`."""

    def __init__(self, slots: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> None:
        self.slots, self.begins, self.ends = slots, begins, lengths + 1

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """`query` (B, kv_heads, sharing, D), `keys` and `values` [slots, kv_heads, capacity, D], all of fp32 -> as
        query, and the log-sum-exp (B, kv_heads, sharing)."""
        output = query.new_empty(*query.shape[:-1], values.shape[-1])
        weight = query.new_empty(query.shape[:-1])
        _attend(
            query.contiguous().numpy(), keys.numpy(), values.numpy(), self.slots, self.begins, self.ends,
            np.float32(scale) * LOG2_E, output.numpy(), weight.numpy(),
        )  # fmt: skip
        return output, weight


def is_compiled_for(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `OwnKeys` can read keys of this kind."""
    return device.type == "cpu" and dtype == torch.float32


@compiled
def _attend(query, keys, values, slots, begins, ends, scale, output, weight):
    """Scores are in powers of two, not of e: `scale` has log2(e) in it."""
    rows, kv_heads, sharing, size = query.shape
    scores = np.empty((sharing, keys.shape[2]), dtype=np.float32)
    for row in range(rows):
        begin, end = begins[row], ends[row]
        count = end - begin
        for head in range(kv_heads):
            own_keys = keys[slots[row], head, begin:end]  # (count, D)
            own_values = values[slots[row], head, begin:end]
            for key in range(count):
                for one in range(sharing):
                    score = np.float32(0)
                    for at in range(size):
                        score += query[row, head, one, at] * own_keys[key, at]
                    scores[one, key] = score * scale
            for one in range(sharing):
                weight[row, head, one] = _softmax(scores[one, :count]) * LN_2
            output[row, head] = 0
            for key in range(count):
                for one in range(sharing):
                    share = scores[one, key]
                    for at in range(own_values.shape[1]):
                        output[row, head, one, at] += share * own_values[key, at]


@compiled
def _softmax(scores):
    """In place, of powers of two; the logarithm to 2 of their sum."""
    largest = scores[0]
    for key in range(len(scores)):
        largest = max(largest, scores[key])
    total = np.float32(0)
    for key in range(len(scores)):
        scores[key] = _power_of_two(scores[key] - largest)
        total += scores[key]
    for key in range(len(scores)):
        scores[key] /= total
    return largest + np.float32(math.log2(total))


@compiled
def _power_of_two(exponent):
    """2^x for x <= 0, to 1e-7 of it: of the whole part by the bits of a float, of the rest (-0.5 to 0.5) by the
    polynomial of Cephes. Unlike the library's it can be done in vectors."""
    exponent = max(exponent, LEAST_EXPONENT)
    whole = np.floor(exponent + np.float32(0.5))
    rest = exponent - whole
    power = np.float32(1.535336188319500e-4)
    for factor in FACTORS:
        power = power * rest + factor
    return power * np.int32((np.int32(whole) + 127) << 23).view(np.float32)
