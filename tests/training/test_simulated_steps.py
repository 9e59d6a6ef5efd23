"""Steps that are played out in events, from the times of one run, take as long as those of another run do."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest
from run_files import rows
from small_stages import through
from verb import printed_json, sleuth

from sleuth.plan.parts import measured_parts
from sleuth.plan.simulate import Split, simulate

STEPS, SAMPLES, SLOTS = 8, 4, 4
SIZES = ("stage.0.data.limit=1", "stage.1.prompts_per_step=2", f"stage.1.samples_per_prompt={SAMPLES}")
SIZES += (f"stage.1.steps={STEPS}", "stage.1.probe_prompts=0", "stage.2.data.limit=1")
SIZES += ("stage.1.learning_rate=1e-9",)  # else the episodes of the runs differ more from step to step


@pytest.mark.long
def test_steps_of_other_servers_and_another_lag_take_what_the_times_of_one_run_say(run, recipe_file, tmp_path, servers):
    pair = servers("sglang", "sglang", token_seconds=0.06, tail=0.5)
    splits = {"one": (1, 0), "two": (2, 0), "lag-1": (2, 1), "lag-2": (2, 2), "lag-4": (2, 4)}
    for name, (count, lag) in splits.items():
        pool = through(pair[:count], requests_at_once=SLOTS, max_policy_lag=lag)
        run(recipe_file, tmp_path / name, pool, *SIZES)
    seconds = {
        name: [row["seconds_rollout"] + row["seconds_update"] for row in rows(tmp_path / name)] for name in splits
    }
    parts, count, step = measured_parts(tmp_path / "one", "grpo", 1)
    assert (count, step) == (1, pytest.approx(fmean(seconds["one"][1:])))
    parts = replace(parts, client=[0.0])  # which here has the servers in its process
    for name, (count, lag) in splits.items():
        split = Split(servers=count, ranks=1, slots=SLOTS, prompts=2, samples=SAMPLES, lag=lag)
        found = simulate(parts, split, steps=STEPS, whole=True).step
        print(f"{name}: {fmean(seconds[name]):.2f} s a step, simulated {found:.2f}")
        assert found == pytest.approx(fmean(seconds[name]), rel=0.15)

    options = [option for value in (*SIZES, through(pair[:1], requests_at_once=SLOTS)) for option in ("--set", value)]
    arguments = ("plan", recipe_file, "--simulate", "--measured", tmp_path / "one", *options)
    [stage] = printed_json(*arguments)["stages"]
    assert stage["measured_step"] == pytest.approx(step)
    assert stage["splits"]["this run"]["step"] == pytest.approx(step, rel=0.15)
    assert stage["splits"]["8"]["step"] < stage["splits"]["1"]["step"]
    shown = sleuth(*arguments).stdout
    assert max(map(len, shown.splitlines()[1:])) <= 80
    assert json.dumps(stage)
