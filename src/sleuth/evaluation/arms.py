"""The level of one arm and the paired difference of two on the same questions, with one run per arm or several.

An arm is a table `runs[s][q]`: the mean over the samples of run s (a seed) on question q, or None. A question that any
run lacks is left out.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sleuth.evaluation.intervals import UNMEASURED, Measured, bootstrap_mean, paired_bootstrap, share
from sleuth.evaluation.significance import mcnemar, sign_flip, student_bound, student_p

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


def level(runs: Runs, *, is_share: bool) -> Measured:
    """The mean of one arm; `n` counts questions. The interval of non-negative values stays at or above 0, that of a
    share at or below 1."""
    table = _complete(runs)[0]
    if len(table) == 1:
        return share(list(table[0])) if is_share else bootstrap_mean(list(table[0]))
    if is_share and len(set(table.flat)) == 1:  # all right or all wrong: no variance to estimate
        return share(list(table[0]))
    minimum = 0.0 if is_share or not (table < 0).any() else -math.inf
    return _clipped(_crossed(table)[0], minimum, 1.0 if is_share else math.inf)


def difference(ours: Runs, theirs: Runs, *, is_share: bool) -> Difference | None:
    """Ours minus theirs over the questions that every run of both has; None without any. A difference of shares stays
    between -1 and 1."""
    a, b = _complete(ours, theirs)
    if not a.shape[1]:
        return None
    if len(a) > 1 or len(b) > 1:
        measured, p = _crossed(a, b)
        bound = 1.0 if is_share else math.inf
        return Difference(measured=_clipped(measured, -bound, bound), p=p, test="student")
    measured = paired_bootstrap(list(a[0]), list(b[0]))
    if set(a[0]) | set(b[0]) <= {0.0, 1.0}:
        p = mcnemar(int((a[0] > b[0]).sum()), int((a[0] < b[0]).sum()))
        return Difference(measured=measured, p=p, test="mcnemar")
    return Difference(measured=measured, p=sign_flip(list(a[0] - b[0])), test="sign_flip")


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


def _crossed(ours: np.ndarray, theirs: np.ndarray | None = None) -> tuple[Measured, float]:
    """The mean of `ours` (S, Q), or of `ours` minus `theirs`, over runs and questions, and the p-value against 0."""
    arms = [ours] if theirs is None else [ours, theirs]
    by_question = ours.mean(axis=0) if theirs is None else ours.mean(axis=0) - theirs.mean(axis=0)  # (Q,)
    n = len(by_question)
    if n == 0:
        return UNMEASURED, 1.0
    question_part = by_question.var(ddof=1) / n if n > 1 else 0.0
    run_parts = [arm.mean(axis=1).var(ddof=1) / len(arm) if len(arm) > 1 else 0.0 for arm in arms]
    rest = sum(map(_rest_variance, arms))
    variance = max(question_part + sum(run_parts) - rest, question_part, sum(run_parts))
    value = float(by_question.mean())
    if variance == 0:
        return Measured(value=value, low=value, high=value, n=n), float(value == 0)
    parts = [(question_part, n - 1), *((part, len(arm) - 1) for part, arm in zip(run_parts, arms, strict=True))]
    freedom = max(1.0, variance**2 / sum(part**2 / degrees for part, degrees in parts if degrees > 0))
    error = math.sqrt(variance)
    half = student_bound(freedom) * error
    return Measured(value=value, low=value - half, high=value + half, n=n), student_p(value / error, freedom)


def _rest_variance(arm: np.ndarray) -> float:
    """The part of the variance of the mean that is due neither to runs nor to questions; 0 for a single run."""
    runs, questions = arm.shape
    if runs < 2 or questions < 2:
        return 0.0
    rest = arm - arm.mean(axis=1, keepdims=True) - arm.mean(axis=0, keepdims=True) + arm.mean()
    return float((rest**2).sum() / ((runs - 1) * (questions - 1)) / (runs * questions))
