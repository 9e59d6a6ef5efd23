"""`write_comparison`: the page of a comparison, self-contained and without network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.answers.failures import MODES
from sleuth.evaluation.paired import side_of_zero
from sleuth.report.axes import Scale, area, dots, line, round_domain, running_mean, ticks
from sleuth.report.comparison import Comparison
from sleuth.report.curves import (
    BOTTOM,
    LEFT,
    MAX_POINTS,
    PANELS,
    RIGHT,
    TOP,
    Chart,
    Curve,
    Panel,
    Row,
    smoothing,
    stages_of,
)
from sleuth.report.figures import DECIMALS, label_of, whiskers
from sleuth.report.page import fill, write_page
from sleuth.report.rollouts_shown import questions_shown
from sleuth.report.transcripts import TextPool

SCRIPTS = ("elements.js", "transcript.js", "questions.js", "curves.js", "compare_start.js")


def write_comparison(comparison: Comparison, file: Path) -> None:
    """Writes the page, and its folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(file, render_comparison(comparison))


def render_comparison(comparison: Comparison) -> str:
    """The page as HTML. All text of models and corpora is escaped, in text and in data."""
    pool = TextPool()
    curves = _curves(comparison)
    stages = matched_charts(curves)
    data = {
        "charts": [chart.read_out() for charts in stages.values() for chart in charts],
        "questions": questions_shown(comparison.names, comparison.matched.paired(comparison.names), pool),
        "texts": pool.texts,
    }
    return fill(
        "compare.html",
        SCRIPTS,
        comparison=comparison,
        names=comparison.names,
        pairs=list(comparison.became),
        rows=[_row(comparison, key) for key in comparison.levels],
        modes={mode: words for mode, words in MODES.items() if any(one[mode] for one in comparison.modes.values())},
        totals={name: sum(counts.values()) for name, counts in comparison.modes.items()},
        stages=stages,
        several=any(len(runs) > 1 for runs in curves.values()),
        data=data,
    )


def _row(comparison: Comparison, key: str) -> dict[str, Any]:
    """A row of the table: levels with their picture, and differences by pair."""
    drawn, axis = whiskers(comparison.levels[key])
    return {
        "key": key,
        "label": label_of(key),
        "levels": comparison.levels[key],
        "whiskers": drawn,
        "axis": axis,
        "digits": DECIMALS.get(key, 3),
        "differences": [
            (found, found is not None and side_of_zero(found.measured) != 0)
            for found in comparison.differences[key].values()
        ],
    }


def _curves(comparison: Comparison) -> Arms:
    """The metrics rows of each arm's runs; empty unless every arm has runs and they are not all the same run."""
    runs = {arm.name: [member.run for member in arm.members if member.run] for arm in comparison.arms}
    folders = {run.folder.resolve() for of_arm in runs.values() for run in of_arm}
    if len(folders) < 2 or not all(runs.values()):
        return {}
    return {name: [run.metrics for run in of_arm] for name, of_arm in runs.items()}


SHOWN = ("reward_mean", "em", "searches_mean", "response_tokens_mean", "nonzero_advantage_fraction", "entropy")

Arms = Mapping[str, Sequence[Sequence[Row]]]
"""The rows of `metrics.jsonl` by arm, run by run."""

Column = list[float | None]


def matched_charts(arms: Arms) -> dict[str, list[Chart]]:
    """Charts by stage, for the stages (by name) that every arm has: the panels of `SHOWN` with data."""
    if not arms:
        return {}
    stages = {name: [stages_of(rows) for rows in runs] for name, runs in arms.items()}
    first = next(iter(stages.values()))[0]
    common = [stage for stage in first if all(stage in run for runs in stages.values() for run in runs)]
    panels = [next(panel for panel in PANELS if panel.keys == (key,)) for key in SHOWN]
    matched = {}
    for stage in common:
        rows = {name: [run[stage] for run in runs] for name, runs in stages.items()}
        charts = [chart for panel in panels if (chart := overlaid(panel, rows)) is not None]
        if charts:
            matched[stage] = charts
    return matched


def overlaid(panel: Panel, arms: Arms) -> Chart | None:
    """One panel with a curve for each arm, in order, so that an arm has one colour in all charts; None without data. An
    arm of several runs is drawn as their mean, in a band from the lowest to the highest."""
    [key] = panel.keys
    found = {name: [_by_step(key, rows) for rows in runs] for name, runs in arms.items()}
    steps = sorted({step for runs in found.values() for run in runs for step in run})
    values = [value for runs in found.values() for run in runs for value in run.values()]
    if not values:
        return None
    low, high = round_domain(values if panel.top is None else [panel.top])
    x = Scale(low=min(steps[0], steps[-1] - 1), high=steps[-1], start=LEFT, end=RIGHT)
    y = Scale(low=low, high=high, start=BOTTOM, end=TOP)
    kept = steps[:: -(-len(steps) // MAX_POINTS)]
    return Chart(
        title=panel.title,
        hint=panel.hint,
        curves=tuple(_curve(name, runs, kept, x, y) for name, runs in found.items()),
        x_ticks=ticks(x, 4),
        y_ticks=ticks(y, 4),
        steps=tuple(kept),
        at=tuple(map(x, kept)),
    )


def _by_step(key: str, rows: Sequence[Row]) -> dict[int, float]:
    values = ((row["step"], row.get(key)) for row in rows)
    return {step: float(value) for step, value in values if isinstance(value, int | float)}


def _curve(name: str, runs: Sequence[Mapping[int, float]], steps: Sequence[int], x: Scale, y: Scale) -> Curve:
    own = sorted({step for run in runs for step in run})
    smooth = [dict(zip(run, _smoothed(list(run.values())), strict=True)) for run in runs]
    middle = dict(zip(own, _smoothed([_over(runs, step)[1] for step in own]), strict=True))
    shown = [step for step in steps if step in middle]
    values: Column = [_over(runs, step)[1] if step in middle else None for step in steps]
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
