"""The state of a run is said by what is on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleuth.report.live import roughly, run_state
from sleuth.report.run_files import RunFiles

STAGES = (
    {"kind": "evaluate", "name": "base"},
    {"kind": "supervised", "name": "warm", "steps": 10},
    {"kind": "grpo", "name": "grpo", "steps": 220, "stop_after": 200, "alarms": {"reward_collapse": "pause"}},
    {"kind": "evaluate", "name": "trained"},
)
BASE = {"base": "models/tiny-base"}


def rows_of(count: int, first: int = 0, **last: Any) -> list[dict[str, Any]]:
    found = [{"step": first + step, "seconds_rollout": 3.0, "seconds_update": 1.0} for step in range(1, count + 1)]
    return [*found[:-1], found[-1] | last] if found else []


TEN = rows_of(10)


def said(
    *,
    stages: Any = STAGES,
    rows: Any = None,
    evaluated: Any = BASE,
    ended: Any = (),
    saved: int = 20,
    held: bool | None = True,
    age: float = 1.0,
) -> tuple[str, str]:
    by_stage = {"warm": TEN, "grpo": rows_of(12, first=10)} if rows is None else rows
    run = RunFiles(
        folder=Path("demo"),
        recipe={"stage": list(stages)},
        manifest={"costs": {name: {"seconds": {"total": 1.0}} for name in ended}},
        metrics=[{"stage": stage} | row for stage, of_stage in by_stage.items() for row in of_stage],
        evaluations={name: {"model": model} for name, model in evaluated.items()},
    )
    state = run_state(run, saved=saved, held=held, age=age)
    return state.kind, state.sentence


UNASKED = "stopped before it had evaluated trained; the same command goes on"
TRAINED = {"warm": TEN, "grpo": rows_of(200, first=10)}


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"stages": ()}, "waiting", "waiting: no run has begun in this folder"),
        ({"rows": {}, "evaluated": {}}, "working", "evaluating base"),
        ({"rows": {}}, "working", "training warm, step 0 of 10"),
        ({"rows": {"warm": rows_of(4)}}, "working", "training warm, step 4 of 10, less than a minute left"),
        ({}, "working", "training grpo, step 12 of 200, 13 min left"),
        ({"held": None}, "working", "training grpo, step 12 of 200, 13 min left"),
        ({"age": 420.0}, "quiet", "training grpo, step 12 of 200: no new step for 7 min"),
        ({"age": 420.0, "held": None}, "quiet", "training grpo, step 12 of 200: no new step for 7 min"),
        ({"held": False}, "stopped", "stopped at step 12 of 200; the same command goes on from step 10"),
        ({"held": False, "saved": 22}, "paused", "paused at step 12 of 200, saved; the same command goes on"),
        ({"rows": TRAINED}, "working", "evaluating trained"),
        ({"rows": TRAINED, "held": False}, "stopped", UNASKED),
        ({"rows": TRAINED, "evaluated": BASE | {"trained": "c/step-000210"}}, "finished", "finished"),
        ({"rows": TRAINED, "evaluated": BASE | {"trained": "c/step-000110"}}, "working", "evaluating trained"),
    ],
)  # fmt: skip
def test_a_run_is_where_its_files_say(changes: dict[str, Any], kind: str, sentence: str) -> None:
    assert said(**changes) == (kind, sentence)


@pytest.mark.parametrize(("held", "kind"), [(None, "paused"), (False, "paused"), (True, "working")])
def test_an_alarm_that_pauses_has_paused_the_run_unless_it_goes_on(held: bool | None, kind: str) -> None:
    raised = {"warm": TEN, "grpo": rows_of(12, first=10, alarms=["no_signal", "reward_collapse"])}
    found, sentence = said(rows=raised, held=held)
    assert found == kind
    if kind == "paused":
        assert sentence == "paused at step 12 of 200 by reward_collapse"


def test_times_are_rounded_as_people_say_them() -> None:
    assert [roughly(seconds) for seconds in (20, 60, 840, 7500, 273_600)] == [
        "less than a minute",
        "1 min",
        "14 min",
        "2 h 5 min",
        "3 d 4 h",
    ]
