"""Two-sided p-values of paired differences (not corrected for multiple tests), sample sizes for a given power, and rank
correlation."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import product
from statistics import NormalDist, fmean, stdev

import numpy as np

from sleuth.evaluation.intervals import cluster_means

MAX_EXACT = 14
"""Up to so many nonzero differences, all sign assignments are enumerated."""
FLIPS = 10_000
BLOCK = 500  # flips drawn at once
ANGLES = 20_000
MAX_FREEDOM = 1e4  # beyond it Student's t equals the normal to four digits


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test (Psychometrika 12, 1947): the p-value of a fair coin for the pairs that disagree.

    `gained` pairs are 1 on our side alone, `lost` on the other alone. `mcnemar(9, 1) == 22 / 1024`.
    """
    disagree = gained + lost
    tail = sum(math.comb(disagree, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**disagree)


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """Fisher's randomisation test of paired differences: the share of sign assignments whose mean is at least as far
    from zero. Exact for few differences; else from 10,000 random assignments and the observed one (Phipson and Smyth,
    arXiv:1603.05766), so that it is never 0.

    `sign_flip([1.0, 1.0, 1.0]) == 2 / 8`.
    """
    nonzero = np.array([value for value in differences if value], dtype=float)
    if not len(nonzero):
        return 1.0
    observed = abs(nonzero.sum()) * (1 - 1e-9)  # tolerates rounding by the order of summation
    if len(nonzero) <= MAX_EXACT:
        sums = np.array(list(product((1.0, -1.0), repeat=len(nonzero)))) @ nonzero
        return float((abs(sums) >= observed).mean())
    rng = np.random.default_rng(seed)
    blocks = (rng.choice((1.0, -1.0), size=(BLOCK, len(nonzero))) @ nonzero for _ in range(FLIPS // BLOCK))
    as_far = sum(int((abs(sums) >= observed).sum()) for sums in blocks)
    return (1 + as_far) / (1 + FLIPS)


def student_p(t: float, freedom: float) -> float:
    """The two-sided p-value of Student's t with `freedom` degrees of freedom (at least 1)."""
    freedom = min(freedom, MAX_FREEDOM)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    return _area(angle, freedom) / _area(0.0, freedom)


def student_bound(freedom: float) -> float:
    """The two-sided 5 % critical value of Student's t: 12.71 for 1 degree of freedom, 1.96 for very many."""
    freedom = min(freedom, MAX_FREEDOM)
    angles = np.linspace(0.0, math.pi / 2, ANGLES)
    heights = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95, below / below[-1], angles)))


def _area(angle: float, freedom: float) -> float:
    """The unnormalised tail area beyond an angle: with t = sqrt(freedom) tan(angle) the density of t is proportional to
    cos(angle) to the power freedom - 1."""
    angles = np.linspace(angle, math.pi / 2, ANGLES)
    return float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))


LEVEL, POWER = 0.05, 0.8
"""The significance level of a two-sided test, and its power."""
_Z = NormalDist().inv_cdf(1 - LEVEL / 2)
_Z_POWER = NormalDist().inv_cdf(POWER)


def draws_for_shares(one: float, other: float) -> int:
    """Independent draws per arm needed to distinguish two shares. `draws_for_shares(0.09, 0.10) == 13_495`: what a
    table of four published arms between 0.088 and 0.098 would have needed, where it had 1,024. Raises ValueError for
    equal shares."""
    if one == other:
        raise ValueError(f"two shares of {one} are equal: no number of draws distinguishes them")
    mean = (one + other) / 2
    null = _Z * math.sqrt(2 * mean * (1 - mean))
    alternative = _Z_POWER * math.sqrt(one * (1 - one) + other * (1 - other))
    return math.ceil(((null + alternative) / (one - other)) ** 2)


def clusters_for_difference(
    differences: Sequence[float | None], clusters: Sequence[Hashable] | None = None
) -> int | None:
    """The total number of clusters needed to detect a paired difference with the mean and variance of these. None for
    fewer than two clusters or a mean of 0."""
    means = cluster_means(differences, clusters)
    if len(means) < 2 or not (difference := fmean(means)):
        return None
    return max(2, math.ceil(((_Z + _Z_POWER) * stdev(means) / difference) ** 2))


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau-b (Biometrika 33, 1945): concordant minus discordant pairs, over the geometric mean of the pairs
    not tied in either score. 1 for the same order, -1 for the opposite one, None if all values of a score are equal.

    `kendall_tau_b([1, 2, 3], [1, 3, 2]) == 1 / 3`.
    """
    paired = sorted(zip(one, other, strict=True))
    pairs = math.comb(len(paired), 2)
    untied_one, untied_other = pairs - _ties(one), pairs - _ties(other)
    if not untied_one or not untied_other:
        return None
    discordant, smaller = 0, list[float]()
    for _, value in paired:  # of those with a smaller first score, count those with a larger second one
        discordant += len(smaller) - bisect_right(smaller, value)
        insort(smaller, value)
    concordant = pairs - _ties(one) - _ties(other) + _ties(paired) - discordant
    return (concordant - discordant) / math.sqrt(untied_one * untied_other)


def _ties(values: Sequence[Hashable]) -> int:
    """The number of pairs of equal values."""
    return sum(math.comb(count, 2) for count in Counter(values).values())
