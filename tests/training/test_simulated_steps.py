"""Steps that are played out in events, from the times of one run, take as long as those of another run do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from run_files import rows
from small_stages import through
from verb import printed_json, sleuth

from sleuth.plan.parts import measured_parts
from sleuth.plan.simulate import Split, simulate

SIZES = ("stage.0.data.limit=1", "stage.1.steps=11", "stage.1.prompts_per_step=2", "stage.2.data.limit=1")
SIZES += ("stage.1.learning_rate=1e-9",)  # else the episodes of the two runs differ more from step to step
SLOTS = 4


def seconds_of(folder: Path) -> float:
    """Of a step after the first."""
    return fmean(row["seconds_rollout"] + row["seconds_update"] for row in rows(folder)[1:])


@pytest.mark.long
def test_steps_of_other_servers_and_another_lag_take_what_the_times_of_one_run_say(run, recipe_file, tmp_path, servers):
    pair = servers("vllm", "vllm", token_seconds=0.02, tail=0.5)
    splits = {"one": (1, 0), "two": (2, 0), "ahead": (2, 2)}
    for name, (count, lag) in splits.items():
        pool = through(pair[:count], requests_at_once=SLOTS, max_policy_lag=lag)
        run(recipe_file, tmp_path / name, pool, *SIZES)
    parts, count, seconds = measured_parts(tmp_path / "one", "grpo", 1)
    assert (count, seconds) == (1, pytest.approx(seconds_of(tmp_path / "one")))
    parts = replace(parts, client=[0.0])  # which here has the servers in its process
    for name, (count, lag) in splits.items():
        found = simulate(parts, Split(servers=count, ranks=1, slots=SLOTS, prompts=2, samples=8, lag=lag), steps=40)
        print(f"{name}: {seconds_of(tmp_path / name):.2f} s a step, simulated {found.step:.2f}")
        # Across updates the server draws what is left of a turn anew, and few steps end at once.
        assert found.step == pytest.approx(seconds_of(tmp_path / name), rel=0.4 if lag else 0.15)

    arguments = (
        "plan",
        recipe_file,
        "--simulate",
        "--measured",
        tmp_path / "one",
        "--set",
        SIZES[2],
        "--set",
        SIZES[1],
    )
    arguments += ("--set", through(pair[:1], requests_at_once=SLOTS))
    [stage] = printed_json(*arguments)["stages"]
    assert stage["measured_step"] == pytest.approx(seconds)
    assert stage["splits"]["this run"]["step"] == pytest.approx(seconds, rel=0.15)
    assert stage["splits"]["8"]["step"] < stage["splits"]["1"]["step"]
    shown = sleuth(*arguments).stdout
    assert max(map(len, shown.splitlines()[1:])) <= 80
    assert json.dumps(stage)
