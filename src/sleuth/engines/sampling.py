"""Drawing tokens: one uniform number a token, known from the request's key alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numba import prange

from sleuth.learn.compiled import LOG2_E, MIN_EXPONENT, compiled, compiled_in_parallel, greatest, power_of_two

LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny
"""Logits are divided by no less: fp32 may hold less as 0, and 0 / 0 is no number. Whatever is less likely than the
likeliest has probability zero long before."""


def uniforms(key: Sequence[int], n: int) -> np.ndarray:
    """The n random numbers in [0, 1) of the request named `key`; the i-th is for its i-th token.

    A counter-based generator (Philox) keyed by a hash of `key`: nothing that runs beside the request can shift them.
    """
    return np.random.Generator(np.random.Philox(key=_hashed(key, 16))).random(n)


def seed_of(key: Sequence[int]) -> int:
    """The request's seed for an engine that draws its own numbers: below 2^31, which every one takes."""
    return _hashed(key, 4) >> 1


def _hashed(key: Sequence[int], size: int) -> int:
    """A number of `size` bytes."""
    digest = hashlib.blake2b(",".join(str(int(part)) for part in key).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "little")


def sample(logits: torch.Tensor, temperatures: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One token a row with its log-probability: `logits` (B, V), `temperatures` (B) and `draws` (B) -> (B), (B).

    The whole vocabulary is the support. The token is where the cumulative distribution passes the row's draw; at
    temperature 0 it is the likeliest, and the log-probability reported is the one at temperature 1; at the smallest
    temperatures it is the likeliest too, with log-probability 0. A token of probability zero is never drawn.
    Probabilities are fp32, their cumulative sums fp64. The logits are used up.
    """
    temperatures = np.where(temperatures == 0, 0, np.maximum(temperatures, LEAST_TEMPERATURE))
    if logits.device.type == "cpu":
        return draw_tokens(logits.float().numpy(), temperatures, draws)
    told = torch.from_numpy(np.stack([temperatures, draws])).to(logits.device)
    tokens, logprobs = _sample(logits.float(), *told).cpu().numpy()  # one transfer; fp64 holds any token exactly
    return tokens.astype(np.int64), logprobs


def _sample(shares: torch.Tensor, temperatures: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """(2, B) fp64: the tokens and their log-probabilities."""
    greedy = temperatures == 0
    shares -= shares.amax(dim=-1, keepdim=True)  # (B, V)
    shares /= torch.where(greedy, 1, temperatures)[:, None].float()
    likeliest = shares.argmax(dim=-1)
    tokens, total = _pick(shares.exp_(), draws)
    tokens = torch.where(greedy, likeliest, tokens)
    chosen = shares.gather(1, tokens[:, None])[:, 0]
    return torch.stack([tokens.double(), chosen.double().log() - total.log()])


def _pick(shares: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the cumulative sum of `shares` (b, V) passes the draw's part of the total, and the total: (b), (b) fp64."""
    vocabulary = shares.shape[1]
    if vocabulary % STRETCH:
        shares = F.pad(shares, (0, -vocabulary % STRETCH))
    spans = shares.unflatten(1, (-1, STRETCH))  # (b, n, STRETCH)
    ends = spans.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # (b, n)
    total = ends[:, -1:]
    stretch, threshold = _search(ends, draws[:, None] * total)  # (b, 1) each
    before = F.pad(ends, (1, 0)).gather(1, stretch)
    inside = spans.gather(1, stretch[:, :, None].expand(-1, 1, STRETCH))[:, 0].cumsum(dim=-1, dtype=torch.float64)
    place, _ = _search(inside, threshold - before)
    return (stretch * STRETCH + place)[:, 0].clamp(max=vocabulary - 1), total[:, 0]


def _search(cumulative: torch.Tensor, threshold: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first entry (b, 1) above the threshold, which is kept below the total, and the threshold so kept.

    That entry has grown from its predecessor, so its share is not zero.
    """
    total = cumulative[:, -1:]
    threshold = torch.minimum(threshold.clamp(min=0), torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, threshold, right=True)
    return found.clamp(max=cumulative.shape[1] - 1), threshold  # beyond the last: where the total is not a number


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
            stretch[at] = np.float32(0) if exponent < MIN_EXPONENT else share
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
