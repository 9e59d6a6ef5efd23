"""Advantages: how much better than its siblings each episode of a group did."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Literal

AdvantageKind = Literal["grpo", "centered", "rloo", "best"]


def has_signal(values: Sequence[float | None]) -> bool:
    """Whether the present values of a group differ at all; if they do not, the group teaches nothing."""
    return len({value for value in values if value is not None}) > 1


def group_advantages(
    values: Sequence[float | None], kind: AdvantageKind, *, std_floor: float = 1e-4
) -> list[float | None]:
    """The G advantages of one group. A missing value (None) leaves the mean, the deviation and the result.

    - `grpo`: (x - mean) / max(std, std_floor), arXiv:2402.03300. The paper does not say which std; ours is the
      population's, so that the advantages of a group have mean square 1 however many siblings are missing. (The
      sample's, which verl and TRL take, is larger by sqrt(n / (n - 1)).) The floor keeps scores that differ by noise
      from being blown up to full size.
    - `centered`: x - mean, Dr. GRPO, arXiv:2503.20783.
    - `rloo`: x - mean of the others, which is n / (n - 1) times the centred value, arXiv:2402.14740.
    - `best`: 1 for the best, the first of equals, if it is above 0; nothing for all others. With ratios of 1 the step
      is one of cross-entropy on the best samples: expert iteration (arXiv:2203.14465), a round a step.

    A group without signal gets exactly 0.0. `group_advantages([1, 0, None, 0, 0], "centered")` is
    `[0.75, -0.25, None, -0.25, -0.25]`.
    """
    if not has_signal(values):
        return [None if value is None else 0.0 for value in values]
    present = [value for value in values if value is not None]
    if kind == "best":
        best = values.index(max(present)) if max(present) > 0 else None
        return [None if value is None else float(at == best) for at, value in enumerate(values)]
    mean = fmean(present)
    scale = {
        "grpo": 1 / max(pstdev(present, mean), std_floor),
        "centered": 1.0,
        "rloo": len(present) / (len(present) - 1),
    }[kind]
    return [None if value is None else (value - mean) * scale for value in values]
