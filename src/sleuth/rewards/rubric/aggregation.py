"""Verdicts by many criteria as one number, in the three ways that are in use.

Each criterion weighs 1 if it is wanted, -1 if it is not. For the same criteria the three are affine functions of each
other, so that they rank siblings alike; but a criterion that nobody fails moves them differently, and so does their
weight beside another reward. None, a verdict that could not be had, makes the whole None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

Graded = Sequence[tuple[bool, float | None]]
"""(wanted, score) by each criterion; a score is how far it is fulfilled, from 0 to 1, a fault too."""

Aggregation = Callable[[Graded, bool], float | None]
"""The worth of an answer, and whether it is one that may be paid for the faults it does not have."""


def mean_flipped(graded: Graded, answers: bool) -> float | None:
    """The mean, where of what is not wanted 1 - s counts: from 0 to 1. As the published refiners have it.

    One that does not answer has no fault either: without `answers` it is paid nothing for that, or silence would be
    worth the share of faults among the criteria.
    """
    worths = [score if wanted else flipped(score, answers) for wanted, score in graded]
    known = [worth for worth in worths if worth is not None]
    return fmean(known) if len(known) == len(worths) else None


def flipped(score: float | None, answers: bool) -> float | None:
    """What the absence of a fault is worth. Missing stays missing: a judge that fails clears nobody."""
    if score is None:
        return None
    return 1 - score if answers else 0.0


def positive_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over the sum of the positive weights, at least 1 (arXiv:2511.19399): below 0 where faults prevail."""
    total = _weighted(graded)
    return None if total is None else total / max(1, sum(wanted for wanted, _ in graded))


def absolute_weights(graded: Graded, answers: bool) -> float | None:
    """sum(w s) over sum(|w|), as in open-instruct: cannot reach 1 where any fault is asked for."""
    total = _weighted(graded)
    return None if total is None else total / len(graded)


def _weighted(graded: Graded) -> float | None:
    known = [score if wanted else -score for wanted, score in graded if score is not None]
    return sum(known) if len(known) == len(graded) else None


AGGREGATIONS: dict[str, Aggregation] = {
    "mean_flipped": mean_flipped,
    "positive_weights": positive_weights,
    "absolute_weights": absolute_weights,
}
"""By the name that a recipe gives them."""
