"""What is sampled: prompts of token ids, and how many tokens each request writes."""

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
    """`length` tokens to write after `prompt`. `key` names the draw: (prompt, sample)."""

    prompt: tuple[int, ...]
    length: int
    key: tuple[int, int]


def equal_lengths(prompts: int = 8) -> list[Request]:
    """64 requests, siblings of 8 prompts, that all write 128 tokens."""
    return _requests(prompts, lambda draw: MOST)


def ragged_lengths(prompts: int = 32) -> list[Request]:
    """256 requests, siblings of 32 prompts, with geometric lengths."""
    return _requests(prompts, lambda draw: geometric(draw, MEAN, MOST))


def miniature() -> list[Request]:
    """A few short requests with prompts of their own: what loads all code before anything is timed."""
    draw = random.Random("miniature")
    return [Request(prompt=_prompt(draw, 8), length=3, key=(at, 0)) for at in range(8)]


WORKLOADS = {"equal": equal_lengths, "ragged": ragged_lengths}


def geometric(draw: random.Random, mean: int, most: int) -> int:
    """How many tokens are written if each is the last with probability 1 / mean, at most `most`."""
    return min(most, 1 + int(math.log(1.0 - draw.random()) / math.log(1 - 1 / mean)))


def tokens_of(requests: Sequence[Request]) -> int:
    """How many tokens all requests write."""
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
