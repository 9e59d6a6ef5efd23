"""The level of one arm and the paired difference of two on the same questions, with one run per arm or several;
p-values, two-sided and not corrected for multiple tests; and rank correlation.

An arm is a table `runs[s][q]`: the mean over the samples of run s (a seed) on question q, or None. A question that any
run lacks is left out. A suite has a table for each set: its figures are unweighted means over the sets, and what varies
are the questions within them.

**One run per arm.** Levels have Wilson's interval (shares) or a bootstrap over questions (means), differences a paired
bootstrap over questions. They describe these runs, not what another seed would give.

**Several runs.** Runs and questions are two crossed samples, modelled as x[s, q] = mean + run[s] + question[q] +
rest[s, q]. The variance of the mean is estimated as V(runs) + V(questions) - V(rest), because the first two both
contain the rest (two-way clustering: Cameron, Gelbach and Miller, J. Bus. Econ. Stat. 29, 2011; the analysis of
variance of two crossed random effects). For a difference, V(questions) comes from the paired differences and V(runs)
from each arm. The interval is Student's, with Satterthwaite's degrees of freedom (Biometrics 2, 1946): with two or
three runs it is wide if they disagree, where a bootstrap would be too narrow. An arm of a single run adds no variance
of runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from sleuth.evaluation.intervals import UNMEASURED, Measured, Stratum, mean_of_means, share

Runs = Sequence[Sequence[float | None]]
"""`runs[s][q]`, as above."""

Test = Literal["mcnemar", "sign_flip", "student"]
"""McNemar's exact test for outcomes of 0 or 1; a randomisation test for others; Student's t for several runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean difference over n questions with its 95 % interval, and the two-sided p-value of its `test`."""

    measured: Measured
    p: float
    test: Test

    def as_json(self) -> dict[str, Any]:
        """`{"value": 0.1, "low": 0.02, "high": 0.18, "n": 200, "p": 0.012, "test": "mcnemar"}`."""
        return self.measured.as_json() | {"p": self.p, "test": self.test}


def level(*sets: Runs, is_share: bool) -> Measured:
    """The mean of one arm, or the mean over its sets; `n` counts questions. The interval of non-negative values stays
    at or above 0, that of a share at or below 1. Unmeasured if a set has no value: the mean of the others would be
    another figure."""
    tables = [_complete(runs)[0] for runs in sets]
    if not all(table.size for table in tables):
        return UNMEASURED
    values = np.concatenate([table.ravel() for table in tables])
    if len(tables) == 1 and is_share and (len(tables[0]) == 1 or len(set(values)) == 1):
        return share(list(tables[0][0]))  # all right or all wrong in all runs: no variance to estimate
    if len(tables[0]) == 1:
        return mean_of_means(_strata(tables))
    minimum = 0.0 if is_share or not (values < 0).any() else -math.inf
    return _clipped(_crossed([(table,) for table in tables])[0], minimum, 1.0 if is_share else math.inf)


def difference(*sets: Sequence[Runs], is_share: bool) -> Difference | None:
    """Ours minus theirs over the questions that every run of both has, or its mean over the sets, each of which is
    (ours, theirs); None if a set has no such question. A difference of shares stays between -1 and 1."""
    tables = [_complete(*both) for both in sets]
    if not tables or not all(ours.size for ours, _ in tables):
        return None
    if max(map(len, tables[0])) > 1:
        measured, p = _crossed(tables)
        bound = 1.0 if is_share else math.inf
        return Difference(measured=_clipped(measured, -bound, bound), p=p, test="student")
    apart = [ours - theirs for ours, theirs in tables]  # (1, Q) each
    measured = mean_of_means(_strata(apart))
    if len(tables) == 1 and {*np.concatenate(tables[0]).flat} <= {0.0, 1.0}:
        p = mcnemar(int((apart[0] > 0).sum()), int((apart[0] < 0).sum()))
        return Difference(measured=measured, p=p, test="mcnemar")
    weighted = np.concatenate([table[0] / table.size for table in apart])
    return Difference(measured=measured, p=sign_flip(list(weighted)), test="sign_flip")


def _strata(tables: Sequence[np.ndarray]) -> list[Stratum]:
    """The values of single runs, by set."""
    return [Stratum(values=list(table[0])) for table in tables]


def _clipped(measured: Measured, minimum: float, maximum: float) -> Measured:
    """The interval clipped to possible values."""
    if measured.low is None or measured.high is None:
        return measured
    low, high = max(minimum, measured.low), min(maximum, measured.high)
    return Measured(value=measured.value, low=low, high=high, n=measured.n)


def _complete(*arms: Runs) -> list[np.ndarray]:
    """Each arm as an array (S, Q) of the questions that every run of every arm has."""
    tables = [np.array([[math.nan if value is None else value for value in run] for run in runs]) for runs in arms]
    complete = ~np.isnan(np.concatenate(tables)).any(axis=0)
    return [table[:, complete] for table in tables]


def _crossed(sets: Sequence[Sequence[np.ndarray]]) -> tuple[Measured, float]:
    """The mean over the sets of `ours` (S, Q), or of `ours` minus `theirs`, over runs and questions, and the p-value
    against 0. Each set is `(ours,)` or `(ours, theirs)`."""
    by_question = [arms[0].mean(axis=0) - sum(arm.mean(axis=0) for arm in arms[1:]) for arms in sets]  # (Q,) each
    by_run = [np.mean([arm.mean(axis=1) for arm in arms], axis=0) for arms in zip(*sets, strict=True)]  # (S,) each
    parts = [(_mean_variance(values) / len(sets) ** 2, len(values) - 1) for values in by_question]
    question_part = sum(part for part, _ in parts)
    run_parts = [(_mean_variance(values), len(values) - 1) for values in by_run]
    run_part = sum(part for part, _ in run_parts)
    rest = sum(_rest_variance(arm) for arms in sets for arm in arms) / len(sets) ** 2
    variance = max(question_part + run_part - rest, question_part, run_part)
    value, n = float(np.mean([values.mean() for values in by_question])), sum(map(len, by_question))
    if variance == 0:
        return Measured(value=value, low=value, high=value, n=n), float(value == 0)
    freedom = max(1.0, variance**2 / sum(part**2 / degrees for part, degrees in (*parts, *run_parts) if degrees > 0))
    error = math.sqrt(variance)
    half = student_bound(freedom) * error
    return Measured(value=value, low=value - half, high=value + half, n=n), student_p(value / error, freedom)


def _mean_variance(values: np.ndarray) -> float:
    """The variance of the mean of these values; 0 for a single one."""
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0


def _rest_variance(arm: np.ndarray) -> float:
    """The part of the variance of the mean that is due neither to runs nor to questions; 0 for a single run."""
    runs, questions = arm.shape
    if runs < 2 or questions < 2:
        return 0.0
    rest = arm - arm.mean(axis=1, keepdims=True) - arm.mean(axis=0, keepdims=True) + arm.mean()
    return float((rest**2).sum() / ((runs - 1) * (questions - 1)) / (runs * questions))


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
