"""The report of a run that another process writes: its state, and its page, drawn again when its files change."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from sleuth.host.model_path import read_object
from sleuth.recipe.shipped import STEPS, TRAINING
from sleuth.report.arms import MAX_ARMS, distinct_names, require_distinct
from sleuth.report.curves import stages_of
from sleuth.report.page import environment, live_body, without_surrogates
from sleuth.report.rollouts_shown import TextPool, rollouts_shown, step_of
from sleuth.report.run_files import MISSHAPEN, RunFiles, look_at_run, run_in
from sleuth.report.summary import PURPOSES
from sleuth.runs.alarms import DETECTORS
from sleuth.runs.chain import step_name
from sleuth.runs.chain import step_of as saved_step
from sleuth.runs.checkpoints import latest_checkpoint
from sleuth.runs.run_folder import foreign_files, is_held
from sleuth.types import SleuthError

MAX_ALARMS = 20
PARTS = ("recipe", "manifest", "metrics", "evaluations", "rollouts", "judges")
"""Parts of a run that the page can be drawn without."""


def live_reports(folders: Sequence[Path]) -> list[LiveReport]:
    """The reports of these folders, which may be empty still. Raises SleuthError for what is no folder of a run, for
    one that is given twice, and for too many."""
    require_distinct(folders)
    runs = [*map(run_in, folders)]
    for folder, run in zip(folders, runs, strict=True):
        if run != folder:  # which may be to come
            continue
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "no such folder"
            raise SleuthError(f"{folder}: {what}; give the folder of a run, for example runs/demo")
        if not (folder / "recipe.toml").exists() and (foreign := foreign_files(folder)):
            raise SleuthError(
                f"{folder}: not a run folder, it holds {foreign[0]!r} and no recipe.toml; give a folder that "
                "`sleuth train` writes"
            )
    if len(folders) > MAX_ARMS:
        raise SleuthError(f"{len(folders)} runs are too many to read: give at most {MAX_ARMS}")
    names = distinct_names(list(map(str, folders)))
    homes = [folder if run != folder else None for folder, run in zip(folders, runs, strict=True)]
    return [LiveReport(*each) for each in zip(runs, names, homes, strict=True)]


class LiveReport:
    """What a browser asks for, from any thread. If the folder disappears, the page stays as it was. A run in the `home`
    of a folder of documents is one of the `steps` of `sleuth learn`."""

    def __init__(self, folder: Path, name: str, home: Path | None = None) -> None:
        self.name = name
        self.steps: list[str] = []
        self._home = home
        self.state = RunState(kind="waiting", sentence="waiting")
        self.problems: list[str] = []
        self.tag = ""
        self._run = RunFiles(folder=folder)
        self._page: dict[str, Any] = {}
        self._stamp: list[tuple[str, int, int]] | None = None
        self._lock = Lock()

    def look(self) -> None:
        """Reads the folder if it has changed: `tag` is another one then. `state` and `problems` are those of now."""
        folder = self._run.folder
        with self._lock:
            of_home = None
            if self._home is not None:
                of_home, self.steps = home_state(self._home)
            if not folder.is_dir() and of_home is not None:
                self.state = of_home
                return
            if not folder.is_dir():
                self.state = RunState(kind="gone", sentence="the folder is gone; this is what it held")
                return
            if (stamp := _stamp(folder)) != self._stamp:
                self._run, self.problems = look_at_run(folder)
                self._stamp, self.tag = stamp, secrets.token_hex(8)
            age = time.time() - max((at / 1e9 for _, at, _ in stamp), default=time.time())
            newest = latest_checkpoint(folder / "checkpoints")
            saved = saved_step(newest) if newest else 0
            try:
                self.state = of_home or run_state(self._run, saved=saved, held=is_held(folder), age=max(0.0, age))
            except MISSHAPEN as error:
                self.state = RunState(kind="waiting", sentence=f"the state is unknown: {error!r}")

    def alarms(self) -> list[dict[str, Any]]:
        """The last alarms, the newest first, each with the sentence that its detector gives again."""
        raised = [
            (rows[: at + 1], str(name))
            for rows in stages_of(self._run.metrics).values()
            for at, row in enumerate(rows)
            if isinstance(names := row.get("alarms"), list)
            for name in names
        ]
        shown = []
        for rows, name in raised[-MAX_ALARMS:][::-1]:
            sentence = None
            with suppress(KeyError, *MISSHAPEN):  # rows that Sleuth did not write; the name is shown alone
                sentence = DETECTORS[name](rows)
            shown.append({"step": rows[-1]["step"], "name": name, "sentence": sentence})
        return shown

    def page(self) -> dict[str, Any]:
        """`{"tag", "html", "data"}`: the body of the report and the data of its script. Drawn once for a tag."""
        with self._lock:
            if self._page.get("tag") != self.tag:
                self._page = {"tag": self.tag, **_drawn(self._run)}
            return self._page

    def rollouts(self, step: int) -> dict[str, Any]:
        """`{"step", "of", "groups", "texts"}` of a step's first groups. Raises SleuthError if they cannot be read."""
        with self._lock:
            files = [file for file in self._run.rollouts if step_of(file) == step]
            pool = TextPool()
            try:
                shown = rollouts_shown(files, pool)
            except OSError as error:  # pruned or still being copied
                raise SleuthError(f"{files[0].name} cannot be read: {str(error).splitlines()[0]}") from None
        if not shown:
            raise SleuthError(f"{self.name} holds no episodes of step {step}")
        return shown[0] | {"texts": pool.texts}


def state_shown(reports: Sequence[LiveReport], at: int) -> dict[str, Any]:
    """`{"title", "tag", "html"}` of the report at this place: the states of all runs, and its own problems and
    alarms. Reads what is new."""
    for report in reports:
        report.look()
    shown = reports[at]
    html = environment().get_template("live.html").render(reports=reports, shown=shown, alarms=shown.alarms())
    return {"title": f"{shown.state.sentence} · {shown.name}", "tag": shown.tag, "html": without_surrogates(html)}


def _drawn(run: RunFiles) -> dict[str, Any]:
    """The body of the page; without the parts that are not as Sleuth writes them, and then with a line about that."""
    body, problem = _try_to_draw(run)
    if body is not None:
        return body
    line = f"Not all can be drawn: the folder holds what Sleuth did not write ({problem!r})."
    bare = RunFiles(folder=run.folder, recipe_text=run.recipe_text, stale=[*run.stale, line])
    parts = {name: getattr(run, name) for name in PARTS}
    kept = {name: part for name, part in parts.items() if _try_to_draw(replace(bare, **{name: part}))[0] is not None}
    return _try_to_draw(replace(bare, **kept))[0] or live_body(bare)


def _try_to_draw(run: RunFiles) -> tuple[dict[str, Any] | None, Exception | None]:
    try:
        return live_body(run), None
    except (SleuthError, OSError, *MISSHAPEN) as error:
        return None, error


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """(path, time of change, bytes) of what the report shows: equal stamps, equal contents."""
    stamp = []
    names = ("metrics.jsonl", "recipe.toml", "manifest.json", "judges.json", "rollouts", "checkpoints")
    for path in [*(folder / name for name in names), *sorted((folder / "eval").glob("*.json"))]:
        with suppress(OSError):  # it does not exist, or not any more
            status = path.stat()
            stamp.append((str(path), status.st_mtime_ns, status.st_size))
    return stamp


# -- the state ---------------------------------------------------------------------------------------------------------

RECENT = 20
"""Steps whose mean time gives the time left."""
QUIET_SECONDS, QUIET_STEPS = 60.0, 5
"""A run is quiet after so many seconds without a new step, and after so many of its steps' times."""
FIRST_STEP_SECONDS = 300.0
"""The same before a stage's first step, while it loads models and indexes."""

Kind = Literal["waiting", "working", "quiet", "paused", "stopped", "finished", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """`RunState(kind="working", sentence="training grpo, step 12 of 220, 14 min left", done=12, of=220)`; `done` and
    `of` count the steps of the stage."""

    kind: Kind
    sentence: str
    done: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """The stage that a run has reached: its table and rows, the number of steps before it, and how far it is."""

    stage: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    first: int
    done: int
    of: int
    complete: bool

    @property
    def name(self) -> str:
        """`grpo`."""
        return str(self.stage.get("name") or self.stage.get("kind"))

    @property
    def trains(self) -> bool:
        """Whether it counts steps."""
        return "steps" in self.stage

    @property
    def place(self) -> str:
        """`step 12 of 220`."""
        return f"step {self.done:,} of {self.of:,}" if self.trains else self.name


def run_state(run: RunFiles, *, saved: int, held: bool | None, age: float) -> RunState:
    """The state of a run, by what it has left on the disk. `saved` is the step of its last checkpoint, `held` says
    whether a process writes it (None: unknown), and `age` are the seconds since it wrote something."""
    if not run.recipe.get("stage"):
        return RunState(kind="waiting", sentence="waiting: no run has begun in this folder")
    at = _reached(run)
    if at.complete:
        kind, sentence = "finished", "finished"
    elif not held and (halted := _halted(at)) is not None:
        kind, sentence = halted
    else:
        kind, sentence = _left(at, saved) if held is False else _working(at, held, age)
    return RunState(kind=kind, sentence=sentence, done=at.done, of=at.of)


def home_state(home: Path) -> tuple[RunState | None, list[str]]:
    """The state of `sleuth learn` in a home, None while it trains and the run says more; and a line for each step."""
    try:
        record = read_object(home / STEPS)
        steps, now = record["steps"], record.get("now")
        lines = [f"{one['about']}: {_step_time(one['seconds'], now == one['name'])}" for one in steps]
        at = next((at for at, one in enumerate(steps) if one["name"] == now), None)
        if at is None:
            verdict = record["certificate"]["verdict"]
            end = f"{'' if record['handed_over'] else 'not '}handed over: {verdict}"
            return RunState(kind="finished", sentence=f"finished, and {end}"), lines
    except (OSError, SleuthError, *MISSHAPEN):
        return RunState(kind="waiting", sentence="waiting: `sleuth learn` has not begun here"), []
    place = f"step {at + 1} of {len(steps)}: {steps[at]['about'].lower()}"
    if now == TRAINING.name and (home / TRAINING).is_dir():
        return None, lines
    if is_held(home) is False:
        return RunState(kind="stopped", sentence=f"stopped at {place}; the same command goes on"), lines
    return RunState(kind="working", sentence=place), lines


def _step_time(seconds: float | None, now: bool) -> str:
    return "now" if now else "to come" if seconds is None else f"{seconds:,.0f} s"


def _reached(run: RunFiles) -> _Reached:
    """The first stage that is not complete and has none behind it that has begun; the last stage if all are complete. A
    stage that was skipped has ended without rows."""
    ended: set[str] = set()
    with suppress(*MISSHAPEN):
        ended = {name for name, cost in run.manifest.get("costs", {}).items() if "total" in cost["seconds"]}
    by_stage = stages_of(run.metrics)
    places, last, first, model = [], 0, 0, None
    for index, stage in enumerate(run.recipe["stage"]):
        name = str(stage.get("name") or stage.get("kind"))
        rows, done, of = by_stage.get(name, []), 0, 0
        if "steps" in stage:
            of = min(stage["steps"], stage.get("stop_after") or stage["steps"])
            done = rows[-1]["step"] - first if rows else 0
            complete = done >= of or (not rows and name in ended)
            model = step_name(first + of) if rows else model
            last = index if rows else last
        else:
            evaluated = str(run.evaluations[name].get("model", "")) if name in run.evaluations else None
            complete = evaluated is not None and (model is None or not evaluated or Path(evaluated).name == model)
            last = index if complete else last
        places.append(_Reached(stage=stage, rows=rows, first=first, done=done, of=of, complete=complete))
        first += stage.get("steps", 0)
    return next((place for place in places[last:] if not place.complete), places[-1])


def _halted(at: _Reached) -> tuple[Kind, str] | None:
    """How an alarm of the last row ended the run."""
    raised, actions = (at.rows[-1].get("alarms") or () if at.rows else ()), at.stage.get("alarms") or {}
    ways: dict[str, Kind] = {"stop": "stopped", "pause": "paused"}
    for action, kind in ways.items():
        if names := [name for name in raised if actions.get(name) == action]:
            return kind, f"{kind} at {at.place} by {', '.join(names)}"
    return None


def _left(at: _Reached, saved: int) -> tuple[Kind, str]:
    """The state of a run that no process writes."""
    if not at.trains:
        return "stopped", f"stopped before it had evaluated {at.place}; the same command goes on"
    if at.done and saved >= at.first + at.done:
        return "paused", f"paused at {at.place}, saved; the same command goes on"
    since = f" from step {max(0, saved - at.first):,}" if at.done else ""
    return "stopped", f"stopped at {at.place}; the same command goes on{since}"


def _working(at: _Reached, held: bool | None, age: float) -> tuple[Kind, str]:
    if not at.trains:
        verb = "evaluating" if at.stage.get("kind") == "evaluate" else "measuring"
        since = f", for {roughly(age)}" if age >= QUIET_SECONDS else ""
        return "quiet" if held is None and age > FIRST_STEP_SECONDS else "working", f"{verb} {at.place}{since}"
    recent = at.rows[-RECENT:]
    step = sum(row.get(key) or 0.0 for row in recent for key in PURPOSES.values()) / max(1, len(recent))
    sentence = f"training {at.name}, {at.place}"
    if age > (max(QUIET_SECONDS, QUIET_STEPS * step) if step else FIRST_STEP_SECONDS):
        return "quiet", f"{sentence}: no new step for {roughly(age)}"
    return "working", sentence + (f", {roughly(step * (at.of - at.done))} left" if step else "")


def roughly(seconds: float) -> str:
    """`less than a minute`, `14 min`, `2 h 5 min`, `3 d 4 h`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
