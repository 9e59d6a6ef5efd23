"""Whether two scores put the same things into the same order."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Sequence


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
