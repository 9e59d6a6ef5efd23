"""Steps that are played out in events, from the times of one run, take as long as those of another run do."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
from run_files import rows
from small_stages import through
from verb import printed_json, sleuth

from sleuth.plan.parts import measured_parts
from sleuth.plan.simulate import Split, simulate

SIZES = ("stage.0.data.limit=1", "stage.1.steps=8", "stage.1.prompts_per_step=4", "stage.2.data.limit=1")
SLOTS = 4


def seconds_of(folder: Path) -> float:
    """Of a step, without those in which the pipeline fills and empties."""
    steps = [row for row in rows(folder) if row["stage"] == "grpo"][2:-2]
    return fmean(row["seconds_rollout"] + row["seconds_update"] for row in steps)


@pytest.mark.long
def test_steps_of_other_servers_and_another_lag_take_what_the_times_of_one_run_say(run, recipe_file, tmp_path, servers):
    pair = servers("vllm", "vllm", token_seconds=0.02, tail=0.5)
    run(recipe_file, tmp_path / "one", through(pair[:1], requests_at_once=SLOTS), *SIZES)
    run(recipe_file, tmp_path / "two", through(pair, requests_at_once=SLOTS, max_policy_lag=2), *SIZES)
    parts, count, seconds = measured_parts(tmp_path / "one", "grpo", 1)
    assert count == 1
    split = Split(servers=1, ranks=1, slots=SLOTS, prompts=4, samples=8, lag=0)
    alone = simulate(parts, split, steps=40)
    assert alone.step == pytest.approx(seconds, rel=0.15)
    assert alone.limit == "servers"
    both = simulate(parts, Split(servers=2, ranks=1, slots=SLOTS, prompts=4, samples=8, lag=2), steps=40)
    print(
        f"measured {seconds:.2f} and {seconds_of(tmp_path / 'two'):.2f}, simulated {alone.step:.2f} and {both.step:.2f}"
    )
    assert both.step == pytest.approx(seconds_of(tmp_path / "two"), rel=0.15)

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
