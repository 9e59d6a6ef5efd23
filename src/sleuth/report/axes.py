"""The geometry of a small chart: values to pixels, round ticks, SVG paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear map from `[low, high]` to pixels. `Scale(low=0, high=10, start=40, end=140)(5) == 90`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis: its position in pixels, and its label."""

    at: float
    label: str


def round_step(span: float, wanted: int) -> float:
    """1, 2 or 5 times a power of ten that divides `span` (> 0) into about `wanted` parts."""
    power = 10.0 ** math.floor(math.log10(span / wanted))
    return min((power * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(span / step - wanted))


def round_domain(values: Iterable[float], wanted: int = 4) -> tuple[float, float]:
    """The smallest interval with round ends that contains `values` and zero; `(0, 1)` if all are zero."""
    present = [0.0, *values]
    low, high = min(present), max(present)
    if low == high:
        return 0.0, 1.0
    step = round_step(high - low, wanted)
    return math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step


def ticks(scale: Scale, wanted: int) -> tuple[Tick, ...]:
    """Round ticks within the scale, about `wanted` of them."""
    step = round_step(scale.high - scale.low, wanted)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return tuple(Tick(at=scale(count * step), label=number(count * step)) for count in range(first, last + 1))


def number(value: float) -> str:
    """A number as people read it: four figures, thousands as `12k`, tiny ones as `3e-7`, a true minus sign."""
    size = abs(value)
    if size >= 10_000:
        text = f"{size / 1000:.4g}k"
    elif size >= 1000 or size == 0:
        text = f"{size:.0f}"
    else:
        text = f"{size:.4g}" if size >= 0.001 else f"{size:.3g}".replace("e-0", "e-")
    return f"\N{MINUS SIGN}{text}" if value < 0 else text


def signed(value: float, digits: int = 3) -> str:
    """A difference, always with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def line(points: Points) -> str:
    """An open path through the points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def dots(points: Points) -> str:
    """One path of zero-length strokes: with round caps a dot a point, in a tenth of the bytes of as many circles."""
    return "".join(f"M{x:g} {y:g}h0" for x, y in points)


def area(upper: Points, lower: Points) -> str:
    """The closed path between two lines that share their x."""
    return line([*upper, *reversed(lower)]) + "Z" if upper else ""


def running_mean(values: Sequence[float | None], window: int) -> list[float | None]:
    """Mean of the present values within a centred window of odd width; no lag, and absent where the value is absent.
    Each window has a sum of its own: differences of running sums would lose small values behind a large one."""
    if not values:
        return []
    half, ones = window // 2, np.ones(window)
    present = [value is not None for value in values]
    sums = np.convolve([value or 0.0 for value in values], ones)[half : half + len(values)]
    counts = np.convolve(present, ones)[half : half + len(values)]
    return [float(total / count) if here else None for total, count, here in zip(sums, counts, present, strict=True)]
