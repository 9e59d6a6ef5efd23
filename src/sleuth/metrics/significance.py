"""How surprising a paired difference would be if both sides were alike: two-sided p-values, none of them corrected for
how many are looked at."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import product
from statistics import NormalDist, fmean, stdev

import numpy as np

from sleuth.metrics.intervals import cluster_means

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


LEVEL, POWER = 0.05, 0.8
"""Of a two-sided test, and the probability with which it should find what is there."""
_Z = NormalDist().inv_cdf(1 - LEVEL / 2)
_Z_POWER = NormalDist().inv_cdf(POWER)


def draws_for_shares(one: float, other: float) -> int:
    """Independent draws an arm that tell two shares apart. `draws_for_shares(0.09, 0.10) == 13_495`: what a table of
    four published arms between 0.088 and 0.098 would have needed, where it had 1,024. Raises ValueError for equal
    shares, which no number tells apart."""
    if one == other:
        raise ValueError(f"two shares of {one} are the same")
    mean = (one + other) / 2
    alike = _Z * math.sqrt(2 * mean * (1 - mean))
    apart = _Z_POWER * math.sqrt(one * (1 - one) + other * (1 - other))
    return math.ceil(((alike + apart) / (one - other)) ** 2)


def clusters_for_difference(
    differences: Sequence[float | None], clusters: Sequence[Hashable] | None = None
) -> int | None:
    """Clusters in all that would show a paired difference as large as the mean of these, if they vary as these do.
    None where they are too few to tell, or do not differ."""
    means = cluster_means(differences, clusters)
    if len(means) < 2 or not (difference := fmean(means)):
        return None
    return max(2, math.ceil(((_Z + _Z_POWER) * stdev(means) / difference) ** 2))


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau-b (Biometrika 33, 1945): pairs in the same order less pairs in the opposite one, over the geometric
    mean of the pairs that either score tells apart. 1 for the same order, -1 for the opposite one, and None where a
    score tells nothing apart.

    `kendall_tau_b([1, 2, 3], [1, 3, 2]) == 1 / 3`.
    """
    paired = sorted(zip(one, other, strict=True))
    pairs = math.comb(len(paired), 2)
    apart_in_one, apart_in_other = pairs - _ties(one), pairs - _ties(other)
    if not apart_in_one or not apart_in_other:
        return None
    opposite, seen = 0, list[float]()
    for _, value in paired:  # of those with less of the one, how many have more of the other
        opposite += len(seen) - bisect_right(seen, value)
        insort(seen, value)
    same = pairs - _ties(one) - _ties(other) + _ties(paired) - opposite
    return (same - opposite) / math.sqrt(apart_in_one * apart_in_other)


def _ties(values: Sequence[Hashable]) -> int:
    """Pairs of equal values."""
    return sum(math.comb(count, 2) for count in Counter(values).values())
