"""What a run is doing, by what is on the disk: training, evaluating, paused, stopped, finished, or without news."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sleuth.report.time_spent import PURPOSES
from sleuth.runs.checkpoints import step_name

Kind = Literal["waiting", "working", "quiet", "paused", "stopped", "finished", "gone"]
Rows = Sequence[Mapping[str, Any]]

RECENT = 20
"""Steps whose mean time gives the time left."""
QUIET_SECONDS, QUIET_STEPS = 60.0, 5
"""A run is quiet after so many seconds without a new step, and after so many of its steps' times."""
FIRST_STEP_SECONDS = 300.0
"""The same before a stage's first step, while it loads models and indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraces:
    """What a run has left on the disk.

    `stages` are the recipe's tables, `rows` the metrics by stage, `evaluated` the evaluations with their models,
    `ended` the stages that have ended before, `saved` the step of the last checkpoint, `held` whether a process writes
    the run (None: unknown) and `age` the seconds since it wrote something.
    """

    stages: Sequence[Mapping[str, Any]]
    rows: Mapping[str, Rows]
    evaluated: Mapping[str, str]
    ended: Collection[str]
    saved: int
    held: bool | None
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """`RunState(kind="working", sentence="training grpo, step 12 of 220, 14 min left", done=12, of=220)`; `done` and
    `of` count the steps of the stage."""

    kind: Kind
    sentence: str
    done: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The stage that a run has reached; `first` is the number of steps before it."""

    stage: Mapping[str, Any]
    first: int
    done: int
    of: int
    complete: bool

    @property
    def trains(self) -> bool:
        return "steps" in self.stage

    @property
    def name(self) -> str:
        return str(self.stage.get("name") or self.stage.get("kind"))


def state_of(traces: RunTraces) -> RunState:
    """The state of a run whose folder exists."""
    if not traces.stages:
        return RunState(kind="waiting", sentence="waiting: no run has begun in this folder")
    at = _reached(traces)
    if at.complete:
        return RunState(kind="finished", sentence="finished", done=at.done, of=at.of)
    begun = f"step {at.done:,} of {at.of:,}" if at.trains else at.name
    if (halted := _halted(traces, at)) is not None:
        kind, names = halted
        sentence = f"{kind} at {begun} by {names}"
    else:
        kind, sentence = (_left if traces.held is False else _working)(traces, at, begun)
    return RunState(kind=kind, sentence=sentence, done=at.done, of=at.of)


def time_left(rows: Rows, steps: int) -> float | None:
    """Seconds that `steps` more take at the pace of the last ones; None if their times are unknown."""
    recent = rows[-RECENT:]
    spent = [row.get(key) for row in recent for key in PURPOSES.values()]
    seconds = sum(value for value in spent if isinstance(value, int | float))
    return steps * seconds / len(recent) if seconds > 0 else None


def roughly(seconds: float) -> str:
    """`less than a minute`, `14 min`, `2 h 5 min`, `3 d 4 h`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _reached(traces: RunTraces) -> _Place:
    """The first stage that is not complete and has none behind it that has begun; the last stage if all are complete. A
    stage that was skipped has ended without rows."""
    places, first, model = [], 0, None
    for stage in traces.stages:
        name = str(stage.get("name") or stage.get("kind"))
        rows = traces.rows.get(name, ())
        if "steps" in stage:
            of = min(stage["steps"], stage.get("stop_after") or stage["steps"])
            done = rows[-1]["step"] - first if rows else 0
            complete = done >= of or (not rows and name in traces.ended)
            places.append((_Place(stage=stage, first=first, done=done, of=of, complete=complete), bool(rows)))
            model = step_name(first + of) if rows else model
            first += stage["steps"]
        else:
            found = traces.evaluated.get(name)
            complete = found is not None and (model is None or not found or Path(found).name == model)
            places.append((_Place(stage=stage, first=first, done=0, of=0, complete=complete), complete))
    last = max((index for index, (_, begun) in enumerate(places) if begun), default=0)
    return next((place for place, _ in places[last:] if not place.complete), places[-1][0])


def _halted(traces: RunTraces, at: _Place) -> tuple[Kind, str] | None:
    """How an alarm of the last row ended the run, unless it was continued since."""
    rows = traces.rows.get(at.name, ())
    actions = at.stage.get("alarms") or {}
    raised = rows[-1].get("alarms") if rows else None
    if traces.held or not isinstance(raised, list) or not isinstance(actions, Mapping):
        return None
    ways: dict[str, Kind] = {"stop": "stopped", "pause": "paused"}
    for action, kind in ways.items():
        if names := [str(name) for name in raised if actions.get(name) == action]:
            return kind, ", ".join(names)
    return None


def _left(traces: RunTraces, at: _Place, begun: str) -> tuple[Kind, str]:
    """The state of a run that no process writes, and its sentence."""
    goes_on = "the same command goes on"
    if at.trains and at.done and traces.saved >= at.first + at.done:
        return "paused", f"paused at {begun}, saved; {goes_on}"
    if not at.trains:
        return "stopped", f"stopped before it had evaluated {begun}; {goes_on}"
    since = f" from step {max(0, traces.saved - at.first):,}" if at.done else ""
    return "stopped", f"stopped at {begun}; {goes_on}{since}"


def _working(traces: RunTraces, at: _Place, begun: str) -> tuple[Kind, str]:
    rows = traces.rows.get(at.name, ())
    if not at.trains:
        verb = "evaluating" if at.stage.get("kind") == "evaluate" else "measuring"
        since = f", for {roughly(traces.age)}" if traces.age >= QUIET_SECONDS else ""
        is_quiet = traces.held is None and traces.age > FIRST_STEP_SECONDS
        return "quiet" if is_quiet else "working", f"{verb} {begun}{since}"
    step = time_left(rows, 1)
    sentence = f"training {at.name}, {begun}"
    if traces.age > (max(QUIET_SECONDS, QUIET_STEPS * step) if step else FIRST_STEP_SECONDS):
        return "quiet", f"{sentence}: no new step for {roughly(traces.age)}"
    left = time_left(rows, at.of - at.done)
    return "working", sentence + (f", {roughly(left)} left" if left is not None else "")
