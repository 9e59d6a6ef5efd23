"""Metrics over steps as small charts: the panels, their order and their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from sleuth.evaluation.figures import figure, is_score, scores_in
from sleuth.runs.metrics import step_figures
from sleuth.types import StepFigure

WIDTH, HEIGHT = 340, 168
LEFT, RIGHT, TOP, BOTTOM = 46, 324, 8, 146
MAX_POINTS = 500  # more dots than pixels are invisible

Row = dict[str, Any]
Panel = tuple[StepFigure, ...]
Values = Sequence[float | None]
Arms = Mapping[str, Sequence[Sequence[Row]]]
"""The rows of `metrics.jsonl` by arm, run by run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart. `line`, `dots` and, if stacked, `area` are SVG paths; `values` and `heights` (pixels) are
    shown at the pointer."""

    label: str
    line: str
    values: tuple[float | None, ...]
    heights: tuple[float | None, ...]
    dots: str = ""
    area: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel: axes, curves, and their shared steps (as numbers, and as pixels in `at`)."""

    title: str
    hint: str
    curves: tuple[Curve, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    steps: tuple[int, ...]
    at: tuple[float, ...]

    def read_out(self) -> dict[str, Any]:
        """The data that the page's script shows at the pointer."""
        curves = [{"label": c.label, "values": c.values, "heights": c.heights} for c in self.curves]
        return {"steps": self.steps, "at": self.at, "curves": curves}


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """The charts of these rows (one stage, rising steps); a metric without values is left out."""
    return [chart for panel in panels_of(rows) if (chart := draw(panel, rows))]


def panels() -> list[Panel]:
    """The figures of each chart, which are stacked if they are several."""
    by_title: dict[str, Panel] = {}
    for row in step_figures():
        by_title[row.title] = (*by_title.get(row.title, ()), row)
    return [panel for title, panel in by_title.items() if title]


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """The panels, with one for each scorer beside the strict one, each function of the user and each of its parts, and
    last for the figures of evaluations at steps, and of hooks of the user."""
    first, *others = panels()
    scores = [(StepFigure(key, "", figure(key).label, first[0].hint),) for key in scores_in(rows)]
    own = [
        StepFigure(key, "", *shown) for key in dict.fromkeys(key for row in rows for key in row) if (shown := _own(key))
    ]
    return [first, *scores, *others, *((panel,) for panel in own)]


def _own(key: str) -> tuple[str, str] | None:
    """The title and the hint of a figure of a hook, or of a leading one of an evaluation at a step; None for others."""
    kind, _, rest = key.partition("_")
    name, _, one = rest.partition("/")
    if kind == "hook" and one:
        return f"{one} of {name}", "by a hook of your own"
    leads = kind == "eval" and one and (figure(one).short or is_score(one))
    return (f"{figure(one).label}: {name}", "evaluation at this step") if leads else None


def stages_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by the stage that wrote them, in order of appearance; steps start again with each stage."""
    stages: dict[str, list[Row]] = {}
    for row in rows:
        stages.setdefault(str(row.get("stage", "")), []).append(row)
    return stages


def matched_charts(arms: Arms) -> dict[str, list[Chart]]:
    """Charts by stage, for the stages (by name) that every arm has: those of compared figures with data."""
    if not arms:
        return {}
    stages = {name: [stages_of(rows) for rows in runs] for name, runs in arms.items()}
    first = next(iter(stages.values()))[0]
    common = [stage for stage in first if all(stage in run for runs in stages.values() for run in runs)]
    compared = [panel for panel in panels() if panel[0].compared]
    matched = {}
    for stage in common:
        rows = {name: [run[stage] for run in runs] for name, runs in stages.items()}
        charts = [chart for panel in compared if (chart := overlaid(panel, rows))]
        if charts:
            matched[stage] = charts
    return matched


def draw(panel: Panel, rows: Sequence[Row]) -> Chart | None:
    """The chart of one panel, or None if none of its keys has a value."""
    panel = tuple(one for one in panel if any(_value(row, one.name) is not None for row in rows))
    keys = [one.name for one in panel]
    if len(keys) < 2:
        return overlaid(panel, {key: [rows] for key in keys}) if keys else None
    rows = [row for row in rows if any(_value(row, key) is not None for key in keys)]
    columns = [[_value(row, key) for row in rows] for key in keys]
    totals = [sum(value or 0.0 for value in values) for values in zip(*columns, strict=True)]
    x, y = _scales(panel, [row["step"] for row in rows], totals)
    kept = slice(None, None, -(-len(rows) // MAX_POINTS))
    steps = tuple(row["step"] for row in rows[kept])
    curves, floor = [], [0.0] * len(steps)
    for key, column in zip(keys, columns, strict=True):
        smooth = running_mean(column, smoothing(len(rows)))[kept]
        upper = [base + (value or 0.0) for base, value in zip(floor, smooth, strict=True)]
        curves.append(_layer(key, list(map(x, steps)), y, column[kept], floor, upper))
        floor = upper
    return _chart(panel, curves, x, y, steps)


def overlaid(panel: Panel, arms: Arms) -> Chart | None:
    """One figure with a curve for each arm, in order, so that an arm has one colour in all charts; None without data.
    An arm of several runs is drawn as their mean, in a band from the lowest to the highest."""
    found = {name: [_by_step(panel[0].name, rows) for rows in runs] for name, runs in arms.items()}
    steps = sorted({step for runs in found.values() for run in runs for step in run})
    values = [value for runs in found.values() for run in runs for value in run.values()]
    if not values:
        return None
    x, y = _scales(panel, steps, values)
    kept = steps[:: -(-len(steps) // MAX_POINTS)]
    return _chart(panel, [_curve(name, runs, kept, x, y) for name, runs in found.items()], x, y, kept)


def smoothing(count: int) -> int:
    """Width of the running mean over `count` steps: about a twentieth of the run, odd, 1 (none) for very short ones."""
    return max(1, count // 20 // 2 * 2 + 1)


def _value(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def _scales(panel: Panel, steps: Sequence[int], values: Sequence[float]) -> tuple[Scale, Scale]:
    low, high = round_domain(values if panel[0].top is None else [panel[0].top])
    x = Scale(low=min(steps[0], steps[-1] - 1), high=steps[-1], start=LEFT, end=RIGHT)
    return x, Scale(low=low, high=high, start=BOTTOM, end=TOP)


def _chart(panel: Panel, curves: Sequence[Curve], x: Scale, y: Scale, steps: Sequence[int]) -> Chart:
    return Chart(
        title=panel[0].title,
        hint=panel[0].hint,
        curves=tuple(curves),
        x_ticks=ticks(x, 4),
        y_ticks=ticks(y, 4),
        steps=tuple(steps),
        at=tuple(map(x, steps)),
    )


def _by_step(key: str, rows: Sequence[Row]) -> dict[int, float]:
    return {row["step"]: value for row in rows if (value := _value(row, key)) is not None}


def _curve(name: str, runs: Sequence[Mapping[int, float]], steps: Sequence[int], x: Scale, y: Scale) -> Curve:
    own = sorted({step for run in runs for step in run})
    smooth = [dict(zip(run, _smoothed(list(run.values())), strict=True)) for run in runs]
    middle = dict(zip(own, _smoothed([_over(runs, step)[1] for step in own]), strict=True))
    shown = [step for step in steps if step in middle]
    values = [_over(runs, step)[1] if step in middle else None for step in steps]
    heights = tuple(None if value is None else y(value) for value in values)
    band = [(x(step), *map(y, _over(smooth, step)[::2])) for step in shown] if len(runs) > 1 else []
    points = [(x(step), height) for step, height in zip(steps, heights, strict=True) if height is not None]
    return Curve(
        label=name,
        line=line([(x(step), y(middle[step])) for step in shown]),
        values=tuple(values),
        heights=heights,
        dots="" if band else dots(points),
        area=area([(at, high) for at, _, high in band], [(at, low) for at, low, _ in band]),
    )


def _smoothed(values: Sequence[float]) -> list[float]:
    return [value for value in running_mean(values, smoothing(len(values))) if value is not None]


def _over(runs: Sequence[Mapping[int, float]], step: int) -> tuple[float, float, float]:
    """The lowest, the mean and the highest of the runs that have this step."""
    there = [run[step] for run in runs if step in run]
    return min(there), fmean(there), max(there)


def _layer(
    key: str, at: Sequence[float], y: Scale, raw: Values, floor: Sequence[float], upper: Sequence[float]
) -> Curve:
    top, bottom = ([(x, y(value)) for x, value in zip(at, values, strict=True)] for values in (upper, floor))
    return Curve(
        label=key.removeprefix("seconds_"),
        line=line(top),
        area=area(top, bottom),
        values=tuple(raw),
        heights=tuple(height for _, height in top),
    )


# -- geometry ----------------------------------------------------------------------------------------------------------


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
