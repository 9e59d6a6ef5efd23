"""Advantages: each episode's score relative to its group."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Literal

AdvantageKind = Literal["grpo", "centered", "rloo", "best", "none"]


def has_signal(values: Sequence[float | None]) -> bool:
    """Whether the non-missing values of a group differ; otherwise all its advantages are 0."""
    return len({value for value in values if value is not None}) > 1


STD_FLOOR = 1e-4
"""Smallest standard deviation that scores are divided by: smaller differences are noise."""


def group_advantages(values: Sequence[float | None], kind: AdvantageKind) -> list[float | None]:
    """The G advantages of one group. A missing value (None) is left out of mean and deviation and stays None.

    - `grpo`: (x - mean) / max(std, STD_FLOOR), arXiv:2402.03300. The paper does not say which std; ours is the
      population's, so that the advantages of a group have mean square 1 however many values are missing. (The
      sample's, which verl and TRL use, is larger by sqrt(n / (n - 1)).) The floor keeps score differences that are
      noise from being scaled up.
    - `centered`: x - mean, Dr. GRPO, arXiv:2503.20783.
    - `rloo`: x - mean of the others, which is n / (n - 1) times the centred value, arXiv:2402.14740.
    - `best`: 1 for the maximum (the first, if tied) if it is above 0; 0 for all others. With ratios of 1 a step is
      cross-entropy on the best samples: one round of expert iteration (arXiv:2203.14465).
    - `none`: 0 for all.

    A group without signal gets exactly 0.0. `group_advantages([1, 0, None, 0, 0], "centered")` is
    `[0.75, -0.25, None, -0.25, -0.25]`.
    """
    if kind == "none" or not has_signal(values):
        return [None if value is None else 0.0 for value in values]
    present = [value for value in values if value is not None]
    if kind == "best":
        best = values.index(max(present)) if max(present) > 0 else None
        return [None if value is None else float(at == best) for at, value in enumerate(values)]
    mean = fmean(present)
    scale = {
        "grpo": 1 / max(pstdev(present, mean), STD_FLOOR),
        "centered": 1.0,
        "rloo": len(present) / (len(present) - 1),
    }[kind]
    return [None if value is None else (value - mean) * scale for value in values]
