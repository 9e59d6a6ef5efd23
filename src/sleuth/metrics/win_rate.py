"""Which of two models answers better, by a judge's verdicts on pairs of their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sleuth.metrics.intervals import Measured, share
from sleuth.metrics.significance import mcnemar
from sleuth.types import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """Of n tasks: `wins`, `ties` and `losses` of the first side, and those without a verdict. `rate` is the share of
    wins with ties as halves; `p` is that of the sign test, which leaves ties out.

    `WinRate(rate=Measured(value=0.7, ...), wins=6, ties=2, losses=2, missing=1, p=0.289)`.
    """

    rate: Measured
    wins: int
    ties: int
    losses: int
    missing: int
    p: float

    def as_json(self) -> dict[str, Any]:
        """The record as an object."""
        return asdict(self)


def win_rate(verdicts: Sequence[Verdict], tasks: Sequence[Hashable] | None = None) -> WinRate:
    """How often the first of each pair is better. `tasks` says which pairs are about the same task: their scores are
    averaged first, and a task counts once, a win where its mean is above one half. Without it each pair is its own.

    A missing or invalid verdict is left out and never a loss; a task is missing where none of its pairs has one.
    """
    named = range(len(verdicts)) if tasks is None else tasks
    scores: dict[Hashable, list[float]] = {task: [] for task in named}
    for task, verdict in zip(named, verdicts, strict=True):
        if verdict.score is not None:
            scores[task].append(verdict.score)
    means = [sum(known) / len(known) for known in scores.values() if known]
    sides = Counter((mean > 0.5) - (mean < 0.5) for mean in means)
    return WinRate(
        rate=share(means),
        wins=sides[1],
        ties=sides[0],
        losses=sides[-1],
        missing=len(scores) - len(means),
        p=mcnemar(sides[1], sides[-1]),
    )
