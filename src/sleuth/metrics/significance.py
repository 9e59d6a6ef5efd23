"""How surprising a paired difference would be if both sides were alike: two-sided p-values, none of them corrected for
how many are looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

EXACT = 14
"""Up to so many differences that are not zero, every assignment of signs is tried."""
FLIPS = 10_000
BLOCK = 500  # of them drawn at once
ANGLES = 20_000
MOST_FREEDOM = 1e4  # beyond it Student's t is the normal to four digits


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test (Psychometrika 12, 1947): of the pairs that disagree, is a coin the reason which side won?

    `gained` pairs are 1 on our side alone, `lost` on the other alone. `mcnemar(9, 1) == 22 / 1024`.
    """
    disagree = gained + lost
    tail = sum(math.comb(disagree, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**disagree)


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """Fisher's randomisation test of paired differences: the share of sign assignments whose mean lies at least as far
    from zero. Exact for few differences; else 10,000 drawn ones, with the one that was seen counted among them (Phipson
    and Smyth, arXiv:1603.05766), so that it is never 0.

    `sign_flip([1.0, 1.0, 1.0]) == 2 / 8`.
    """
    told = np.array([value for value in differences if value], dtype=float)
    if not len(told):
        return 1.0
    seen = abs(told.sum()) * (1 - 1e-9)  # a sum in another order is the same sum
    if len(told) <= EXACT:
        sums = np.array(list(product((1.0, -1.0), repeat=len(told)))) @ told
        return float((abs(sums) >= seen).mean())
    rng = np.random.default_rng(seed)
    blocks = (rng.choice((1.0, -1.0), size=(BLOCK, len(told))) @ told for _ in range(FLIPS // BLOCK))
    as_far = sum(int((abs(sums) >= seen).sum()) for sums in blocks)
    return (1 + as_far) / (1 + FLIPS)


def student_p(t: float, freedom: float) -> float:
    """The probability that Student's t with so many degrees of freedom (at least 1) lies at least as far from zero."""
    freedom = min(freedom, MOST_FREEDOM)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    return _area(angle, freedom) / _area(0.0, freedom)


def student_bound(freedom: float) -> float:
    """What |t| exceeds in 5 % of draws: 12.71 for 1 degree of freedom, 1.96 for very many."""
    freedom = min(freedom, MOST_FREEDOM)
    angles = np.linspace(0.0, math.pi / 2, ANGLES)
    heights = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95, below / below[-1], angles)))


def _area(angle: float, freedom: float) -> float:
    """With t = sqrt(freedom) tan(angle) the density of t is proportional to cos(angle) to the power freedom - 1."""
    angles = np.linspace(angle, math.pi / 2, ANGLES)
    return float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))
