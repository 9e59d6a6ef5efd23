"""The page that follows runs: parts as HTML, each drawn again only when what it shows has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from sleuth.report.arms import MAX_ARMS, distinct_names
from sleuth.report.comparison_page import overlaid
from sleuth.report.curves import (
    HEIGHT,
    PANELS,
    WIDTH,
    Chart,
    Panel,
    Row,
    charts_of,
    panels_of,
    smoothing,
    stages_of,
)
from sleuth.report.figures import DECIMALS, label_of, whiskers
from sleuth.report.followed_run import FollowedRun
from sleuth.report.page import environment
from sleuth.report.time_spent import NAMES, stage_times
from sleuth.runs.alarms import DETECTORS
from sleuth.runs.run_folder import foreign_files
from sleuth.types import SleuthError

SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "curves.js", "watch.js")
LATEST = ("reward_mean", "em", "searches_mean", "response_tokens_mean", "entropy", "loss")
"""Figures of the last step that are shown beside the state of a run."""
MAX_ALARMS = 20

Part = dict[str, Any]
"""`{"html", "charts"}`, or for rollouts `{"runs": [{"name", "steps"}]}`."""


def followed_runs(folders: Sequence[Path]) -> list[FollowedRun]:
    """The runs of these folders, which may be empty still. Raises SleuthError for what is no folder of a run, for one
    that is given twice, and for too many."""
    for folder in folders:
        _require_run_or_empty(folder)
        if [other.resolve() for other in folders].count(folder.resolve()) > 1:
            raise SleuthError(f"{folder}: is given twice")
    if len(folders) > MAX_ARMS:
        raise SleuthError(f"{len(folders)} runs are too many to read: give at most {MAX_ARMS}")
    names = distinct_names(list(map(str, folders)))
    return [FollowedRun(folder, name) for folder, name in zip(folders, names, strict=True)]


def _require_run_or_empty(folder: Path) -> None:
    if not folder.exists():
        raise SleuthError(f"{folder}: no such folder; give the folder of a run, for example runs/demo")
    if not folder.is_dir():
        raise SleuthError(f"{folder}: is a file; give the folder of a run, for example runs/demo")
    if not (folder / "recipe.toml").exists() and (foreign := foreign_files(folder)):
        raise SleuthError(
            f"{folder}: not a run folder, it holds {foreign[0]!r} and no recipe.toml; give a folder that "
            "`sleuth train` writes"
        )


class WatchPage:
    """What the page asks for, from any thread. `state` looks at the runs, at most once at a time, and names the parts
    with tags that differ when they have changed; `part` draws one; `rollouts` reads a step."""

    def __init__(self, runs: Sequence[FollowedRun]) -> None:
        self._runs = runs
        self._lock = Lock()
        self._drawn: dict[str, tuple[str, Part]] = {}
        self._draw: dict[str, Callable[[], Part]] = {
            "runs": self._states,
            "alarms": self._alarms,
            "curves": self._curves,
            "figures": self._figures,
            "time": self._time,
            "rollouts": self._rollouts,
        }

    @property
    def shell(self) -> str:
        """The page before it has asked for anything: nothing of the runs but their number."""
        several = len(self._runs) > 1
        data = {"charts": [], "rollouts": [], "opened": [0, 0], "texts": [], "nonce": ""}
        return environment().get_template("watch.html").render(several=several, data=data)

    def state(self) -> dict[str, Any]:
        """`{"title", "parts": {name: tag}}`."""
        with self._lock:
            for run in self._runs:
                run.look()
            return {"title": self._title(), "parts": {name: self._tag(name) for name in self._draw}}

    def part(self, name: str) -> dict[str, Any]:
        """A part with its tag, drawn at most once for a tag. Raises KeyError if there is none of that name."""
        draw = self._draw[name]
        with self._lock:
            tag = self._tag(name)
            if self._drawn.get(name, ("",))[0] != tag:
                self._drawn[name] = tag, _safely(name, draw)
            return {"tag": tag, **self._drawn[name][1]}

    def rollouts(self, run: int, step: int) -> dict[str, Any]:
        """The episodes of a step of a run, by its place. Raises SleuthError if they cannot be read."""
        if not 0 <= run < len(self._runs):
            raise SleuthError(f"there is no run {run}: {len(self._runs)} are watched")
        with self._lock:
            return self._runs[run].rollouts(step)

    def _title(self) -> str:
        if len(self._runs) > 1:
            working = sum(run.state.kind == "working" for run in self._runs)
            return f"{working} of {len(self._runs)} runs at work"
        [run] = self._runs
        return f"{run.state.sentence} · {run.name}"

    def _tag(self, name: str) -> str:
        """What a part depends on, hashed."""
        seen = {
            "runs": [(run.state, run.problems, run.changes, run.evaluations.headline) for run in self._runs],
            "figures": [run.evaluations.measured for run in self._runs],
            "time": [(run.changes, run.manifest.get("costs")) for run in self._runs],
            "rollouts": [run.steps for run in self._runs],
        }.get(name)
        depends = repr([run.changes for run in self._runs] if seen is None else seen)
        return hashlib.sha256(depends.encode("utf-8", "replace")).hexdigest()[:16]

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _states(self) -> Part:
        return _html("watch_runs.html", runs=[(run, _latest(run.rows)) for run in self._runs])

    def _alarms(self) -> Part:
        raised = [alarm for run in self._runs for alarm in _alarms_of(run)]
        return _html("watch_alarms.html", alarms=raised, several=len(self._runs) > 1)

    def _curves(self) -> Part:
        if len(self._runs) == 1:
            rows_of = stages_of(self._runs[0].rows)
            stages = {stage: charts_of(rows) for stage, rows in rows_of.items()}
            windows = {stage: smoothing(len(rows)) for stage, rows in rows_of.items()}
            return _html("curves.html", stages=stages, windows=windows)
        stages = side_by_side({run.name: run.rows for run in self._runs})
        names = [run.name for run in self._runs]
        lacking = "No curves yet: no run has a step."
        return _html("overlaid_curves.html", stages=stages, names=names, several=False, lacking=lacking)

    def _figures(self) -> Part:
        if len(self._runs) > 1:
            return _html("watch_figures.html", tables=self._figure_tables(), names=[run.name for run in self._runs])
        shown = self._runs[0].evaluations
        run = {"evaluations": {name: {"model": model} for name, model in shown.models.items()}}
        return _html("figures.html", run=run, arms=shown.arms, figures=shown.figures, sets=shown.sets)

    def _figure_tables(self) -> dict[str, list[dict[str, Any]]]:
        """For each evaluation a row for each figure, with a value of every run."""
        shown = {run.name: run.evaluations for run in self._runs}
        order = list(dict.fromkeys(row.key for one in shown.values() for row in one.figures))
        tables = {}
        for arm in dict.fromkeys(arm for one in shown.values() for arm in one.arms):
            found = {name: one.measured.get(arm, {}) for name, one in shown.items()}
            keys = list(dict.fromkeys(key for one in found.values() for key in one))
            keys.sort(key=order.index)
            tables[arm] = [_figure_row(key, {name: one.get(key) for name, one in found.items()}) for key in keys]
        return tables

    def _time(self) -> Part:
        if len(self._runs) > 1:
            return {"html": "", "charts": []}
        [run] = self._runs
        return _html("time.html", times=stage_times(run.manifest, stages_of(run.rows)), purposes=NAMES)

    def _rollouts(self) -> Part:
        return {"runs": [{"name": run.name, "steps": run.steps} for run in self._runs]}


def side_by_side(runs: dict[str, Sequence[Row]]) -> dict[str, list[Chart]]:
    """Charts by stage with a curve for each run, in order, so that a run has one colour in all of them. A run without
    a stage or a figure has no curve there."""
    stages = {name: stages_of(rows) for name, rows in runs.items()}
    drawn = {}
    for stage in dict.fromkeys(stage for of_run in stages.values() for stage in of_run):
        arms = {name: [of_run.get(stage, [])] for name, of_run in stages.items()}
        rows = [row for [of_run] in arms.values() for row in of_run]
        charts = [overlaid(panel, arms) for panel in _panels(rows)]
        drawn[stage] = [chart for chart in charts if chart is not None]
    return drawn


def _panels(rows: Sequence[Row]) -> list[Panel]:
    """The panels of one figure each: what is stacked in the charts of one run is drawn apart."""
    return [
        panel
        if len(panel.keys) == 1
        else replace(panel, title=f"Seconds: {key.removeprefix('seconds_')}", hint="a step", keys=(key,))
        for panel in panels_of(rows)
        for key in panel.keys
    ]


def _safely(name: str, draw: Callable[[], Part]) -> Part:
    """The part, or why it cannot be drawn: the other parts can still be."""
    try:
        return draw()
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:  # what Sleuth did not write
        return _html("watch_lacking.html", part=name, reason=f"{type(error).__name__}: {error}")


def _latest(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(title, value) of the last step's figures."""
    titles = {panel.keys[0]: panel.title for panel in PANELS}
    last = rows[-1] if rows else {}
    return [(titles[key], last[key]) for key in LATEST if isinstance(last.get(key), int | float)]


def _alarms_of(run: FollowedRun) -> list[dict[str, Any]]:
    """The last alarms of a run, the newest first, each in a sentence that its detector gives again."""
    found = []
    for stage, rows in stages_of(run.rows).items():
        raised = [(at, names) for at, row in enumerate(rows) if isinstance(names := row.get("alarms"), list)]
        for at, names in raised[-MAX_ALARMS:]:
            for name in names:
                found.append(
                    {"run": run.name, "stage": stage, "step": rows[at]["step"], "name": str(name)}
                    | {"sentence": _sentence(str(name), rows[: at + 1])}
                )
    return found[-MAX_ALARMS:][::-1]


def _sentence(name: str, rows: Sequence[Row]) -> str:
    try:
        return (name in DETECTORS and DETECTORS[name](rows)) or ""
    except (KeyError, TypeError, ValueError):  # rows that Sleuth did not write; the name is shown alone
        return ""


def _figure_row(key: str, measured: dict[str, Any]) -> dict[str, Any]:
    drawn, axis = whiskers(measured)
    levels = list(measured.values())
    return {
        "key": key,
        "label": label_of(key),
        "levels": levels,
        "whiskers": drawn,
        "axis": axis,
        "digits": DECIMALS.get(key, 3),
    }


def _html(template: str, **shown: Any) -> Part:
    html = environment().get_template(template).render(shown, chart_size=(WIDTH, HEIGHT))
    charts = [chart.read_out() for of_stage in shown.get("stages", {}).values() for chart in of_stage]
    return {"html": html.encode("utf-8", "replace").decode("utf-8"), "charts": charts}


def asset(name: str) -> bytes:
    """A style or the joined scripts of the page: `page.css`, `page.js`."""
    parts = {"page.css": ("report.css", "watch.css"), "page.js": SCRIPTS}[name]
    return b"\n".join(files("sleuth.report").joinpath("templates", part).read_bytes() for part in parts)
