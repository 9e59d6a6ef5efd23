"""Sampling of one token per row by two Triton kernels that read the logits once, in their own dtype.

One program sums the probabilities of a part of a row by blocks, relative to the part's largest logit; a second kernel
weighs a row's parts and finds the part of the draw, the block in it and the token in that. Which parts there are
depends on the vocabulary alone, so a row's token is the same in whatever batch it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

PART = 4096
"""Logits of a part: enough programs for a card with one row, and few enough that a program keeps its logits in
registers. A multiple of `BLOCK`, both powers of two."""
BLOCK = 64
"""Probabilities are summed in blocks of this size in fp32, and over blocks in fp64."""
jit = cast(Callable[[Any], Any], triton.jit)  # its functions take tensors as pointers, and a grid in brackets


def sample_by_parts(logits: Tensor, temperatures: Tensor, draws: Tensor) -> Tensor:
    """`sample_rows` of `logits` (B, V), which stay as they are; `temperatures` and `draws` (B) fp64."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, words = logits.shape
    parts = triton.cdiv(words, PART)
    maxima = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    totals = torch.empty(rows, parts, dtype=torch.float64, device=logits.device)
    sums = torch.empty(rows, parts, PART // BLOCK, dtype=torch.float32, device=logits.device)
    sampled = torch.empty(2, rows, dtype=torch.float64, device=logits.device)
    read = {"logits": logits, "logit_row": logits.stride(0), "words": words, "temperatures": temperatures}
    read |= {"maxima": maxima, "totals": totals, "sums": sums, "parts": parts, "part_words": PART, "block": BLOCK}
    _sum_part[parts, rows](**read, num_warps=4)
    _find_token[rows,](**read, draws=draws, sampled=sampled, width=triton.next_power_of_2(parts), num_warps=4)
    return sampled


@jit
def _sum_part(
    logits, logit_row, words, temperatures, maxima, totals, sums, parts,
    part_words: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The largest logit of a part of a row, and the sums of its blocks and of all its probabilities relative to it."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    number = tl.arange(0, part_words // block)
    at = part * part_words + number[:, None] * block + tl.arange(0, block)[None, :]
    own = tl.load(logits + row * logit_row + at, mask=at < words, other=float("-inf")).to(tl.float32)
    largest = tl.max(tl.max(own, 1), 0)
    added = tl.sum(tl.exp2((own - _base(largest)) * _factor(temperatures, row)), 1)
    place = row * parts + part
    tl.store(maxima + place, largest)
    tl.store(totals + place, tl.sum(added.to(tl.float64), 0))
    tl.store(sums + place * (part_words // block) + number, added)


@jit
def _find_token(
    logits, logit_row, words, temperatures, maxima, totals, sums, parts, draws, sampled,
    part_words: tl.constexpr, block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """A row's token and its log-probability. NaN if a logit is: it is in the sums, and in the total so too."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, width)
    logits += row * logit_row
    temperature, factor = tl.load(temperatures + row), _factor(temperatures, row)
    tops = tl.load(maxima + row * parts + at, mask=at < parts, other=float("-inf"))
    top = tl.max(tops, 0)
    scales = tl.exp2((tops - top) * factor)
    weights = scales.to(tl.float64) * tl.load(totals + row * parts + at, mask=at < parts, other=0.0)
    if temperature == 0:
        part = tl.min(tl.where(tops == top, at, parts - 1), 0)  # as by argmax, the first of several
        word = part * part_words + tl.arange(0, part_words)
        likely = tl.load(logits + word, mask=word < words, other=float("-inf")).to(tl.float32) == top
        token = tl.min(tl.where(likely, word, words - 1), 0)
        temperature += 1
    else:
        part, threshold = _search(weights, at, tl.load(draws + row) * tl.sum(weights, 0))
        scale = tl.sum(tl.where(at == part, scales, 0.0), 0)
        number = tl.arange(0, part_words // block)
        added = tl.load(sums + (row * parts + part) * (part_words // block) + number).to(tl.float64)
        found, threshold = _search(added, number, threshold / scale)
        first, inside = part * part_words + found * block, tl.arange(0, block)
        own = tl.load(logits + first + inside, mask=first + inside < words, other=float("-inf")).to(tl.float32)
        probs = tl.exp2((own - _base(tl.load(maxima + row * parts + part))) * factor)
        offset, _ = _search(probs.to(tl.float64), inside, threshold)
        token = tl.minimum(first + offset, words - 1)
    chosen = (tl.load(logits + token).to(tl.float32) - top).to(tl.float64) / temperature
    tl.store(sampled + row, token.to(tl.float64))
    tl.store(sampled + tl.num_programs(0) + row, chosen - tl.log(tl.sum(weights, 0)))


@jit
def _base(largest):
    """What to subtract from logits: not the largest if all are minus infinity."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@jit
def _factor(temperatures, row):
    """What to multiply logits by, for powers of two: log2(e) / temperature, and of greedy rows at temperature 1."""
    temperature = tl.load(temperatures + row)
    return (1.4426950408889634 / tl.where(temperature == 0, 1.0, temperature)).to(tl.float32)


@jit
def _search(values, at, threshold):
    """Where the cumulative sum of `values` passes `threshold`, or reaches its end, and what is left of the threshold
    there. A value of 0 is never found, also where the sum of others is rounded in another way."""
    ends = tl.cumsum(values, 0)
    passed = (ends > threshold) | (ends >= tl.max(ends, 0))
    last = tl.max(tl.where(values > 0, at, 0), 0)
    found = tl.min(tl.where(passed & (values > 0), at, last), 0)
    return found, threshold - tl.sum(tl.where(at < found, values, 0.0), 0)
