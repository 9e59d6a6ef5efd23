"""How many draws a difference would need, so that it is seen: the arithmetic that should come before a table."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist, fmean, stdev

from sleuth.metrics.intervals import cluster_means

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
