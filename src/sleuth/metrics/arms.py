"""One arm, or one beside another, on the same questions: levels and paired differences, with one run an arm or several.

An arm is a table `runs[s][q]`: what run s (a seed) gave on question q, the mean over its samples; None where it gave
nothing. A question that some run lacks is left out for all of them.

**One run an arm.** Levels have Wilson's interval (shares) or a bootstrap over questions (means), differences a paired
bootstrap over questions. They speak of these runs, and not of what another seed would have given.

**Several runs.** Runs and questions are two crossed samples, so that the value is modelled as x[s, q] = mean + run[s] +
question[q] + rest[s, q], and the variance of its mean is estimated as V(runs) + V(questions) - V(rest), because the
first two both hold the rest (two-way clustering: Cameron, Gelbach and Miller, J. Bus. Econ. Stat. 29, 2011; it is the
analysis of variance of two crossed random effects). A difference of arms takes its questions' part from the paired
differences and the runs' parts from each arm by itself. The interval is Student's, with Satterthwaite's degrees of
freedom (Biometrics 2, 1946): with two or three runs it is wide where the runs disagree, as it should be; a bootstrap
over so few would be too narrow. An arm of a single run beside one of several adds no part for its runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sleuth.metrics.intervals import UNMEASURED, Measured, bootstrap_mean, paired_bootstrap, share
from sleuth.metrics.significance import mcnemar, sign_flip, student_bound, student_p

Runs = Sequence[Sequence[float | None]]
"""`runs[s][q]`, as above."""

Test = Literal["mcnemar", "sign_flip", "student"]
"""Exact on outcomes that are 0 or 1; a randomisation test on any others; Student's t over runs and questions."""


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
    """The mean of one arm; `n` counts questions. Where no value is negative the interval is not either, and that of a
    share stays below 1."""
    table = _complete(runs)[0]
    if len(table) == 1:
        return share(list(table[0])) if is_share else bootstrap_mean(list(table[0]))
    if is_share and len(set(table.flat)) == 1:  # all right or all wrong: no spread to estimate a variance from
        return share(list(table[0]))
    least = 0.0 if is_share or not (table < 0).any() else -math.inf
    return _within(_crossed(table)[0], least, 1.0 if is_share else math.inf)


def difference(ours: Runs, theirs: Runs, *, is_share: bool) -> Difference | None:
    """Ours minus theirs over the questions that every run of both has; None where there is none. A difference of shares
    stays between -1 and 1."""
    a, b = _complete(ours, theirs)
    if not a.shape[1]:
        return None
    if len(a) > 1 or len(b) > 1:
        measured, p = _crossed(a, b)
        most = 1.0 if is_share else math.inf
        return Difference(measured=_within(measured, -most, most), p=p, test="student")
    measured = paired_bootstrap(list(a[0]), list(b[0]))
    if set(a[0]) | set(b[0]) <= {0.0, 1.0}:
        p = mcnemar(int((a[0] > b[0]).sum()), int((a[0] < b[0]).sum()))
        return Difference(measured=measured, p=p, test="mcnemar")
    return Difference(measured=measured, p=sign_flip(list(a[0] - b[0])), test="sign_flip")


def _within(measured: Measured, least: float, most: float) -> Measured:
    """The interval cut to what is possible."""
    if measured.low is None or measured.high is None:
        return measured
    return Measured(value=measured.value, low=max(least, measured.low), high=min(most, measured.high), n=measured.n)


def _complete(*arms: Runs) -> list[np.ndarray]:
    """Each arm as (runs, questions), with the questions that every run of every arm has."""
    tables = [np.array([[math.nan if value is None else value for value in run] for run in runs]) for runs in arms]
    whole = ~np.isnan(np.concatenate(tables)).any(axis=0)
    return [table[:, whole] for table in tables]


def _crossed(ours: np.ndarray, theirs: np.ndarray | None = None) -> tuple[Measured, float]:
    """The mean of `ours` (S, Q), or of `ours` minus `theirs`, over runs and questions; and the p-value of zero."""
    arms = [ours] if theirs is None else [ours, theirs]
    by_question = ours.mean(axis=0) if theirs is None else ours.mean(axis=0) - theirs.mean(axis=0)  # (Q,)
    n = len(by_question)
    if n == 0:
        return UNMEASURED, 1.0
    of_questions = by_question.var(ddof=1) / n if n > 1 else 0.0
    of_runs = [arm.mean(axis=1).var(ddof=1) / len(arm) if len(arm) > 1 else 0.0 for arm in arms]
    counted_twice = sum(map(_variance_of_rest, arms))
    variance = max(of_questions + sum(of_runs) - counted_twice, of_questions, sum(of_runs))
    value = float(by_question.mean())
    if variance == 0:
        return Measured(value=value, low=value, high=value, n=n), float(value == 0)
    parts = [(of_questions, n - 1), *((part, len(arm) - 1) for part, arm in zip(of_runs, arms, strict=True))]
    freedom = max(1.0, variance**2 / sum(part**2 / of for part, of in parts if of > 0))
    error = math.sqrt(variance)
    half = student_bound(freedom) * error
    return Measured(value=value, low=value - half, high=value + half, n=n), student_p(value / error, freedom)


def _variance_of_rest(arm: np.ndarray) -> float:
    """The part of the variance of the mean that is neither a run's nor a question's; 0 for a single run."""
    runs, questions = arm.shape
    if runs < 2 or questions < 2:
        return 0.0
    rest = arm - arm.mean(axis=1, keepdims=True) - arm.mean(axis=0, keepdims=True) + arm.mean()
    return float((rest**2).sum() / ((runs - 1) * (questions - 1)) / (runs * questions))
