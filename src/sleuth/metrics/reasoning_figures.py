"""Mean@k and Pass@k of problems that were sampled n times each, with what guessing would come to.

Samples of one problem count as one draw: n is the number of problems. (Intervals over samples, as in the published
table, claim eight times the problems that there are.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth.metrics.intervals import Measured, Stratum, bootstrap_mean, mean_of_means, share

Record = Mapping[str, Any]
"""One problem: `right` (sample by sample 1 or 0), `guess`, `answered` and `cut` likewise."""


def pass_at(k: int, right: Sequence[float]) -> float:
    """The probability that one of k of these samples, drawn without replacement, is right (arXiv:2107.03374).
    `pass_at(1, [1, 0, 0, 0]) == 0.25`, `pass_at(2, [1, 0, 0, 0]) == 0.5`. Raises ValueError for more than there are."""
    count, wrong = len(right), len(right) - int(sum(right))
    if not 1 <= k <= count:
        raise ValueError(f"k = {k} of {count} samples")
    return 1 - math.comb(wrong, k) / math.comb(count, k)


def guessed_pass(k: int, guess: float) -> float:
    """Pass@k of somebody who guesses each time anew: of four choices, 0.90 in eight guesses."""
    return 1 - (1 - guess) ** k


def problem_figures(records: Sequence[Record], k: int) -> dict[str, Measured]:
    """Of one test set. `mean_at_k` and `pass_at_k`; where there are choices, what is left of them above guessing
    (`mean_over_guess`, `pass_over_guess`) and the guess itself; and the shares of samples that gave an answer and that
    their budget cut off."""
    figures = {
        f"mean_at_{k}": share([fmean(record["right"]) for record in records]),
        f"pass_at_{k}": share([pass_at(k, record["right"]) for record in records]),
        "answered": share([fmean(record["answered"]) for record in records]),
        "cut": share([fmean(record["cut"]) for record in records]),
    }
    if any(record["guess"] for record in records):
        guesses = [record["guess"] for record in records]
        lucky = [guessed_pass(k, guess) for guess in guesses]
        figures["guessed_mean"], figures["guessed_pass"] = bootstrap_mean(guesses), bootstrap_mean(lucky)
        figures["mean_over_guess"] = bootstrap_mean(
            [fmean(record["right"]) - guess for record, guess in zip(records, guesses, strict=True)]
        )
        figures["pass_over_guess"] = bootstrap_mean(
            [pass_at(k, record["right"]) - luck for record, luck in zip(records, lucky, strict=True)]
        )
    return figures


def suite_figures(sets: Sequence[Sequence[Record]], k: int) -> dict[str, Measured]:
    """The simple means over test sets, each counting alike, with a stratified bootstrap over problems."""
    means = [Stratum(values=[fmean(record["right"]) for record in records]) for records in sets]
    passes = [Stratum(values=[pass_at(k, record["right"]) for record in records]) for records in sets]
    lucky = [Stratum(values=[guessed_pass(k, record["guess"]) for record in records]) for records in sets]
    return {
        f"mean_at_{k}": mean_of_means(means),
        f"pass_at_{k}": mean_of_means(passes),
        "guessed_pass": mean_of_means(lucky),
    }
