"""`sampling.sample` for CPUs, as compiled loops: twice over a row's logits, and nothing as wide as them is made."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from sleuth.learn.compiled import LEAST_EXPONENT, LOG2_E, compiled, compiled_in_parallel, greatest, power_of_two

STRETCH = 64
"""Shares are added up in stretches of so many: first the one that holds the draw is found, then the token inside it."""


def draw_tokens(logits: np.ndarray, temperatures: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `sampling.sample`, of fp32 `logits` (B, V), at `temperatures` (B) that are 0 or can be divided by."""
    tokens, logprobs = np.empty(len(logits), dtype=np.int64), np.empty(len(logits))
    factors = LOG2_E / np.where(temperatures == 0, 1, temperatures).astype(np.float32)
    _draw(logits, factors, temperatures == 0, draws, tokens, logprobs)
    return tokens, logprobs


@compiled_in_parallel
def _draw(logits, factors, greedy, draws, tokens, logprobs):
    for row in prange(len(logits)):
        shares = logits[row]
        ends = np.empty(-(-len(shares) // STRETCH))  # fp64
        likeliest = np.argmax(shares) if greedy[row] else 0
        total = _share_out(shares, greatest(shares), factors[row], ends)
        tokens[row] = likeliest if greedy[row] else _find(shares, ends, draws[row] * total)
        logprobs[row] = math.log(np.float64(shares[tokens[row]])) - math.log(total)


@compiled
def _share_out(logits, top, factor, ends):
    """Logits (V) become shares, 1 for the likeliest token; `ends` is their sum up to the end of each stretch."""
    total = 0.0
    for number in range(len(ends)):
        stretch = logits[number * STRETCH : (number + 1) * STRETCH]
        added = np.float32(0)
        for at in range(len(stretch)):
            exponent = (stretch[at] - top) * factor
            share = power_of_two(exponent)
            stretch[at] = np.float32(0) if exponent < LEAST_EXPONENT else share
            added += stretch[at]
        total += added
        ends[number] = total
    return total


@compiled
def _find(shares, ends, threshold):
    """The first token at which the sum passes the threshold, or the last before it whose share is not zero."""
    number = min(np.searchsorted(ends, threshold, side="right"), len(ends) - 1)
    while number and ends[number] == ends[number - 1]:
        number -= 1
    total = ends[number - 1] if number else 0.0
    found = number * STRETCH
    for at in range(number * STRETCH, min((number + 1) * STRETCH, len(shares))):
        if shares[at] > 0:
            total += shares[at]
            found = at
            if total > threshold:
                break
    return found
