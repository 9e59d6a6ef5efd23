"""Metrics over steps as small charts: the panels, their order and their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.evaluation.metrics import is_score, score_label
from sleuth.report.axes import Scale, Tick, area, dots, line, round_domain, running_mean, ticks

WIDTH, HEIGHT = 340, 168
LEFT, RIGHT, TOP, BOTTOM = 46, 324, 8, 146
MAX_POINTS = 500  # more dots than pixels are invisible

Row = dict[str, Any]
Values = Sequence[float | None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The definition of a chart. `top` fixes the upper end of the axis; several keys are stacked."""

    title: str
    hint: str
    keys: tuple[str, ...]
    top: float | None = None


PANELS = (
    Panel(title="Reward", hint="mean over the step's episodes", keys=("reward_mean",)),
    Panel(title="Exact match", hint="share of episodes", keys=("em",), top=1.0),
    Panel(title="Token F1", hint="mean over the step's episodes", keys=("token_f1",), top=1.0),
    Panel(title="Well-formed", hint="share of episodes", keys=("format",), top=1.0),
    Panel(title="Right and cited", hint="share of episodes", keys=("cited_answer",), top=1.0),
    Panel(title="Answer in its quotation", hint="share of right answers", keys=("cited_holds_answer",), top=1.0),
    Panel(title="Right passage quoted", hint="share of right answers", keys=("cited_gold",), top=1.0),
    Panel(title="Searches", hint="mean an episode", keys=("searches_mean",)),
    Panel(title="Gain of a search", hint="nats, in right episodes", keys=("search_gain",)),
    Panel(title="Idle searches", hint="share of those in right episodes", keys=("idle_searches",), top=1.0),
    Panel(title="Response length", hint="mean policy tokens an episode", keys=("response_tokens_mean",)),
    Panel(title="Entropy", hint="nats a trained token", keys=("entropy",)),
    Panel(title="KL to the reference", hint="nats a trained token", keys=("kl",)),
    Panel(title="Mismatch KL", hint="sampler against learner, nats a token", keys=("sampler_learner_kl",)),
    Panel(title="Clipped", hint="share of trained tokens", keys=("clip_fraction",)),
    Panel(
        title="Groups with signal",
        hint="share of groups whose scores differ",
        keys=("nonzero_advantage_fraction",),
        top=1.0,
    ),
    Panel(title="Missing verdicts", hint="share of episodes", keys=("missing_fraction",)),
    Panel(title="Weights that changed", hint="share of stored elements", keys=("changed_weights_fraction",)),
    Panel(title="Seconds a step", hint="rollout below, update on top", keys=("seconds_rollout", "seconds_update")),
    Panel(title="Loss", hint="of the whole step", keys=("loss",)),
)


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """The charts of these rows (one stage, rising steps); a metric without values is left out."""
    return [chart for panel in panels_of(rows) if (chart := draw(panel, rows))]


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """The panels, with one for each scorer beside the strict one, each function of the user and each of its parts."""
    keys = dict.fromkeys(key for row in rows for key in row if is_score(key))
    scores = [Panel(title=score_label(key), hint="mean over the step's episodes", keys=(key,)) for key in keys]
    return [*PANELS[:1], *scores, *PANELS[1:]]


def stages_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by the stage that wrote them, in order of appearance; steps start again with each stage."""
    stages: dict[str, list[Row]] = {}
    for row in rows:
        stages.setdefault(str(row.get("stage", "")), []).append(row)
    return stages


def draw(panel: Panel, rows: Sequence[Row]) -> Chart | None:
    """The chart of one panel, or None if none of its keys has a value."""
    keys = [key for key in panel.keys if any(_value(row, key) is not None for row in rows)]
    if not keys:
        return None
    rows = [row for row in rows if any(_value(row, key) is not None for key in keys)]
    columns = [[_value(row, key) for row in rows] for key in keys]
    x, y = _scales(panel, rows, columns)
    kept = slice(None, None, -(-len(rows) // MAX_POINTS))
    steps = tuple(row["step"] for row in rows[kept])
    at = tuple(x(step) for step in steps)
    window, curves = smoothing(len(rows)), []
    floor = [0.0] * len(at) if len(keys) > 1 else None
    for key, column in zip(keys, columns, strict=True):
        smooth = running_mean(column, window)[kept]
        if floor is None:
            curves.append(_curve(key, at, y, column[kept], smooth))
        else:
            upper = [base + (value or 0.0) for base, value in zip(floor, smooth, strict=True)]
            curves.append(_layer(key, at, y, column[kept], floor, upper))
            floor = upper
    return Chart(
        title=panel.title,
        hint=panel.hint,
        curves=tuple(curves),
        x_ticks=ticks(x, 4),
        y_ticks=ticks(y, 4),
        steps=steps,
        at=at,
    )


def smoothing(count: int) -> int:
    """Width of the running mean over `count` steps: about a twentieth of the run, odd, 1 (none) for very short ones."""
    return max(1, count // 20 // 2 * 2 + 1)


def _value(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def _scales(panel: Panel, rows: Sequence[Row], columns: Sequence[Sequence[float | None]]) -> tuple[Scale, Scale]:
    totals = [sum(value or 0.0 for value in values) for values in zip(*columns, strict=True)]
    low, high = round_domain(totals if panel.top is None else [panel.top])
    first, last = rows[0]["step"], rows[-1]["step"]
    x = Scale(low=min(first, last - 1), high=last, start=LEFT, end=RIGHT)
    return x, Scale(low=low, high=high, start=BOTTOM, end=TOP)


def _curve(key: str, at: Sequence[float], y: Scale, raw: Values, smooth: Values) -> Curve:
    heights = tuple(None if value is None else y(value) for value in raw)
    return Curve(
        label=key,
        dots=dots([(x, height) for x, height in zip(at, heights, strict=True) if height is not None]),
        line=line([(x, y(value)) for x, value in zip(at, smooth, strict=True) if value is not None]),
        values=tuple(raw),
        heights=heights,
    )


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
