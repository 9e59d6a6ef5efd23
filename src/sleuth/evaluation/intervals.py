"""Measured quantities and their 95 % intervals.

Missing values (None) are left out, never counted as zero, and `n` counts the rest. Values of one cluster (the siblings
of one task) are averaged first and count as one draw, so that `n` is the number of independent draws.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Z = 1.959963984540054  # the normal quantile that leaves 2.5 % above
RESAMPLES = 10_000
MANY, FEW_DISTINCT = 2_000, 0.02
BLOCK = 500  # resamples drawn at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A value with its 95 % interval from n draws: `Measured(value=0.8, low=0.49, high=0.943, n=10)`.

    Nothing measured is `Measured(value=None, low=None, high=None, n=0)`.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    def as_json(self) -> dict[str, float | int | None]:
        """`{"value": 0.8, "low": 0.49, "high": 0.943, "n": 10}`."""
        return asdict(self)

    @property
    def side(self) -> int:
        """1 or -1 if the whole interval lies on that side of zero, otherwise 0."""
        return 0 if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)

    def formatted(self, number: str = ".3f", *, unmeasured: str = "missing") -> str:
        """`0.800 (0.490 to 0.943)`, with the format `number` for each; the text `unmeasured` if nothing was
        measured."""
        if self.value is None:
            return unmeasured
        value, low, high = (format(figure, number) for figure in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"

    def bracketed(self, number: str = ".3f", bound: str = ".2f") -> str:
        """`0.175 [0.15, 0.21]`, or "missing"."""
        if self.value is None or self.low is None or self.high is None:
            return "missing"
        return f"{self.value:{number}} [{self.low:{bound}}, {self.high:{bound}}]"


UNMEASURED = Measured(value=None, low=None, high=None, n=0)


def measured_in(contents: Mapping[str, Any]) -> dict[str, Measured]:
    """The measured figures of an evaluation file's contents, by name."""
    figures = {name: value for name, value in contents.items() if isinstance(value, Mapping)}
    return {name: Measured(**of) for name, of in figures.items() if of.keys() == {"value", "low", "high", "n"}}


def wilson(successes: float, n: int) -> Measured:
    """The share successes / n with Wilson's score interval (J. Am. Stat. Assoc. 22, 1927), valid near 0 and 1 too.

    `successes` may be fractional, for draws that are means.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} draws")
    if n == 0:
        return UNMEASURED
    share = successes / n
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return Measured(value=share, low=max(0.0, centre - half), high=min(1.0, centre + half), n=n)


def share(values: Sequence[float | None], clusters: Sequence[Hashable] | None = None) -> Measured:
    """The mean of values between 0 and 1 with Wilson's interval over clusters."""
    means = cluster_means(values, clusters)
    return wilson(math.fsum(means), len(means))


def bootstrap_mean(
    values: Sequence[float | None], clusters: Sequence[Hashable] | None = None, seed: int = 0
) -> Measured:
    """The mean of any values with a percentile bootstrap interval over clusters (of width 0 for a single one)."""
    return mean_of_means([Stratum(values=values, clusters=clusters)], seed)


def bounded_mean(values: Sequence[float | None], clusters: Sequence[Hashable] | None = None) -> Measured:
    """`share` where every value is 0 or 1, as with a scorer that finds answers right or wrong: resamples of values that
    are all alike would say that nothing is uncertain. Else `bootstrap_mean`."""
    return (share if {*values} <= {0, 1, None} else bootstrap_mean)(values, clusters)


def bootstrap_ratio(
    numerators: Sequence[float | None],
    denominators: Sequence[float | None],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Measured:
    """The mean of the numerators over the mean of the aligned denominators, which are never negative, with a percentile
    bootstrap interval over clusters. Pairs that lack either side are left out, and so are resamples in which all
    denominators are 0; unmeasured if all are."""
    lacking = [one is None or other is None for one, other in zip(numerators, denominators, strict=True)]
    tops, bottoms = (
        np.array(cluster_means([None if lacks else one for one, lacks in zip(side, lacking, strict=True)], clusters))
        for side in (numerators, denominators)
    )
    n = len(bottoms)
    if not bottoms.any():
        return UNMEASURED
    rng = np.random.default_rng(seed)
    counts = np.concatenate([rng.multinomial(n, np.full(n, 1 / n), size=BLOCK) for _ in range(RESAMPLES // BLOCK)])
    sums = counts @ bottoms
    low, high = np.quantile((counts @ tops)[sums > 0] / sums[sums > 0], [0.025, 0.975])
    return Measured(value=float(tops.sum() / bottoms.sum()), low=float(low), high=float(high), n=n)


def bootstrap_f1(
    predicted: Sequence[float | None],
    expected: Sequence[float | None],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Measured:
    """The F1 of aligned predictions with expected labels (1 or 0), with a percentile bootstrap interval over clusters.
    Unmeasured if neither has a 1; resamples without one are left out."""
    pairs = list(zip(predicted, expected, strict=True))
    hits = [None if one is None or other is None else 2 * one * other for one, other in pairs]
    sums = [None if one is None or other is None else one + other for one, other in pairs]
    return bootstrap_ratio(hits, sums, clusters, seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """The values of one of several populations, with their clusters as in `bootstrap_mean`."""

    values: Sequence[float | None]
    clusters: Sequence[Hashable] | None = None


def mean_of_means(strata: Sequence[Stratum], seed: int = 0, *, outcomes: bool = False) -> Measured:
    """The unweighted mean of the strata's means, with a percentile bootstrap interval that resamples clusters within
    each stratum; n counts all clusters. Of `outcomes`, which are right or wrong, all resamples are alike where each
    stratum is all 0 or all 1; then Wilson's intervals of the strata are combined (Stat. Med. 27, 2008). Unmeasured if
    any stratum is empty: the mean of the rest would be another figure."""
    means = [np.array(cluster_means(stratum.values, stratum.clusters), dtype=float) for stratum in strata]
    if not means or not all(map(len, means)):
        return UNMEASURED
    value = float(np.mean([stratum_means.mean() for stratum_means in means]))
    if outcomes and all(set(stratum_means) in ({0.0}, {1.0}) for stratum_means in means):
        shares = [wilson(stratum_means.sum(), len(stratum_means)) for stratum_means in means]
        below, above = (math.hypot(*(one.value - getattr(one, end) for one in shares)) for end in ("low", "high"))
        low, high = max(0.0, value - below / len(means)), min(1.0, value + above / len(means))
    else:
        rng = np.random.default_rng(seed)
        resampled = np.mean([_resampled_means(stratum_means, rng) for stratum_means in means], axis=0)  # (RESAMPLES,)
        low, high = np.quantile(resampled, [0.025, 0.975])
    return Measured(value=value, low=float(low), high=float(high), n=sum(map(len, means)))


def paired_bootstrap(
    a: Sequence[float | None],
    b: Sequence[float | None],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Measured:
    """The mean of a - b over aligned values, with a bootstrap interval; pairs that lack either side are left out."""
    return bootstrap_mean(minus(a, b), clusters, seed)


def difference_of_shares(a: Sequence[float | None], b: Sequence[float | None]) -> Measured:
    """The mean of a - b over aligned values from 0 to 1, with the normal interval of four more pairs, which is never of
    width 0 (Bonett and Price, J. Educ. Behav. Stat. 37, 2012); pairs that lack either side are left out."""
    known = [value for value in minus(a, b) if value is not None]
    if not known:
        return UNMEASURED
    wider = np.array([*known, 1.0, -1.0, 0.0, 0.0])
    centre, half = float(wider.mean()), Z * math.sqrt(float(wider.var(ddof=1)) / len(wider))
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Measured(value=min(high, max(low, math.fsum(known) / len(known))), low=low, high=high, n=len(known))


def minus(a: Sequence[float | None], b: Sequence[float | None]) -> list[float | None]:
    """Each of a minus the one of b; None where either is."""
    return [None if left is None or right is None else left - right for left, right in zip(a, b, strict=True)]


def _resampled_means(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The means of `RESAMPLES` bootstrap resamples, (RESAMPLES,). Many values with few distinct ones are resampled by
    multinomial counts: the same distribution in a tenth of the time."""
    n = len(means)
    distinct, counts = np.unique(means, return_counts=True)
    if n > MANY and len(distinct) <= n * FEW_DISTINCT:
        return np.array([rng.multinomial(n, counts / n) @ distinct / n for _ in range(RESAMPLES)])
    return np.concatenate([means[rng.integers(n, size=(BLOCK, n))].mean(axis=1) for _ in range(RESAMPLES // BLOCK)])


def cluster_means(values: Sequence[float | None], clusters: Sequence[Hashable] | None) -> list[float]:
    """The mean of each cluster's values, without clusters that have none; `None` makes every value its own cluster."""
    members: defaultdict[Hashable, list[float]] = defaultdict(list)
    for cluster, value in zip(range(len(values)) if clusters is None else clusters, values, strict=True):
        if value is not None:
            members[cluster].append(value)
    return [math.fsum(present) / len(present) for present in members.values()]
