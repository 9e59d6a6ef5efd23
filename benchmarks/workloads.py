"""The sampling workloads: prompts of token ids, and the number of tokens to sample for each request."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.shapes import SMALL

PROMPT = 200
SIBLINGS = 8
MEAN, MOST = 40, 128
"""Ragged lengths: geometric with this mean, cut at this maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of `length` tokens after `prompt`. `key` is the key of the draw: (prompt, sample)."""

    prompt: tuple[int, ...]
    length: int
    key: tuple[int, int]


def equal_lengths(prompts: int = 8) -> list[Request]:
    """64 requests, siblings of 8 prompts, of 128 tokens each."""
    return _requests(prompts, lambda draw: MOST)


def ragged_lengths(prompts: int = 32) -> list[Request]:
    """256 requests, siblings of 32 prompts, with geometric lengths."""
    return _requests(prompts, lambda draw: geometric(draw, MEAN, MOST))


def miniature() -> list[Request]:
    """A few short requests with other prompts, to load all code before the timing."""
    draw = random.Random("miniature")
    return [Request(prompt=_prompt(draw, 8), length=3, key=(at, 0)) for at in range(8)]


WORKLOADS = {"equal": equal_lengths, "ragged": ragged_lengths}


def geometric(draw: random.Random, mean: int, most: int) -> int:
    """A geometric number of tokens with this mean, at most `most`."""
    return min(most, 1 + int(math.log(1.0 - draw.random()) / math.log(1 - 1 / mean)))


def tokens_of(requests: Sequence[Request]) -> int:
    """The number of tokens of all requests."""
    return sum(request.length for request in requests)


def _requests(prompts: int, length: Callable[[random.Random], int]) -> list[Request]:
    draw = random.Random("workload")
    return [
        Request(prompt=prompt, length=length(draw), key=(at, sample))
        for at in range(prompts)
        for prompt in [_prompt(draw, PROMPT)]
        for sample in range(SIBLINGS)
    ]


def _prompt(draw: random.Random, length: int) -> tuple[int, ...]:
    return tuple(draw.randrange(SMALL) for _ in range(length))
