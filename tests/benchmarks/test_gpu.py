"""The self-check of a card, without one: its own code on a CPU with tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import graphs, learner, sampler, sizes, step
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.figures import Figure, Kept, Outcome, results
from benchmarks.gpu.scales import REAL, TINY, shaped

ROOT = Path(__file__).parents[2]
CHECKS_OF_THE_CARD = "benchmarks.gpu.checks:CHECKS"
ON_CPU = Namespace(device="cpu", tiny=True, only=None, json=False, out=None, seconds=120, checks=CHECKS_OF_THE_CARD)


@pytest.fixture
def check(tmp_path) -> Check:
    (tmp_path / "files").mkdir()
    return Check(
        name="tested",
        device=torch.device("cpu"),
        scale=TINY,
        folder=tmp_path / "files",
        records=tmp_path / "records.jsonl",
    )


def records(check: Check) -> list[dict[str, Any]]:
    return [json.loads(line) for line in check.records.read_text().splitlines()]


def figures(check: Check) -> dict[str, Figure]:
    found = [Figure(**record["figure"]) for record in records(check) if "figure" in record]
    return {figure.name: figure for figure in found}


def skipped(check: Check) -> list[str]:
    return [record["skipped"] for record in records(check) if "skipped" in record]


# -- every check runs to its end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_holds_its_bars_with_a_tiny_model(check, name):
    assert check.run(CHECKS[name].load()), records(check)[-1]
    found = figures(check)
    assert found or (name == "servers" and skipped(check))  # which a CPU has nothing to check of
    assert [figure.name for figure in found.values() if figure.held is False] == []


def test_a_step_without_the_trainers_packages_is_played_by_the_parts_and_says_so(check, monkeypatch):
    monkeypatch.setattr(step, "PACKAGES", ("tantivy", "no_such_package"))
    step.step(check)
    found = figures(check)
    assert skipped(check)[0].startswith("the recipe's own trainer: no no_such_package; the same step")
    assert found["searches, mean"].held
    assert found["gradient norm"].held
    assert found["tokens computed, of all"].value < 1


def test_attention_that_lets_siblings_see_each_other_misses_its_bar(check, monkeypatch):
    honest = learner.dense
    # a tree in which every token is on the path of all later ones
    monkeypatch.setattr(
        learner, "dense", lambda tree, *of: honest(replace(tree, ends=torch.full_like(tree.ends, len(tree))), *of)
    )
    learner.attention(check)
    assert figures(check)["output, 3 trees"].held is False


def test_log_probabilities_of_other_weights_miss_their_bar(check, monkeypatch):
    other = sampler.row_logprobs
    monkeypatch.setattr(
        sampler, "row_logprobs", lambda model, rows, budget: other(check.scale.model(check.device), rows, budget=budget)
    )
    monkeypatch.setattr(sampler, "open_engine", with_other_weights(sampler.open_engine))
    sampler.tools(check)
    assert figures(check)["learner gap, mean"].held is False


def with_other_weights(open_engine):
    def changed(check, model, tokenizer):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
        return open_engine(check, model, tokenizer)

    return changed


def test_steps_that_sample_other_tokens_miss_their_bar(check, monkeypatch):
    honest = graphs.continue_all

    def other(engine, written, tokens):
        together, forwards = honest(engine, written, tokens)
        if engine._sampled is not None:
            together = [replace(one, tokens=(0,) * len(one.tokens)) for one in together]
        return together, forwards

    monkeypatch.setattr(graphs, "continue_all", other)
    graphs.graphs(check)
    assert figures(check)["ahead: tokens of waiting, share"].held is False
    assert skipped(check)[0].startswith("CUDA graphs: there is no card")


# -- what only a card has, answered for it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weights", "gigabytes"), [("qwen3_1.7b", 1.72, 41.5), ("qwen2.5_3b", 3.09, 69), ("qwen3_4b", 4.02, 90)]
)
def test_real_sizes_have_the_weights_of_their_models_and_need_what_the_plan_counts(check, name, weights, gigabytes):
    check = replace(check, scale=shaped(REAL, name))
    model = check.scale.model(torch.device("meta"))
    assert sum(weight.numel() for weight in model.parameters()) / 1e9 == pytest.approx(weights, abs=0.005)
    needed = sizes.needed_bytes(model, check.scale.budget // 2)
    assert needed / 1e9 == pytest.approx(gigabytes, abs=1)
    planned = sizes.planned_update(check, SimpleNamespace(model=model), check.scale.budget // 2)
    assert planned * 0.95 < needed < planned * 1.2


# -- launches, peaks and names -------------------------------------------------------------------------------------


# -- bars, table and object ----------------------------------------------------------------------------------------


def outcomes() -> list[Outcome]:
    kept = Figure(check="update", name="utilisation, of the peak", value=0.31, at_least=0.25, seconds=12.3)
    low = Figure(check="update", name="tokens", value=123_456.7, unit="tokens/s", at_least=2e5, seconds=0.5)
    plain = Figure(check="update", name="peak memory, whatever it may be called here", value=14.2, unit="GB")
    return [
        Outcome(check="update", status="done", figures=[kept, low, plain], skipped=["a reason " * 20], seconds=13.0),
        Outcome(check="step", status="failed", message="OutOfMemoryError: no room " * 8, seconds=2.0),
    ]


def test_the_object_counts_missed_bars_and_checks_that_did_not_end():
    found = results(outcomes(), Kept(path=None, card={"name": "cpu"}, scale="tiny"))
    assert (found["held"], found["missed"], found["seconds"], found["scale"]) == (1, 2, 15.0, "tiny")
    assert {figure["held"] for figure in found["checks"][0]["figures"]} == {True, False, None}
    assert found["checks"][1]["message"].startswith("OutOfMemoryError")
    json.dumps(found, allow_nan=False)


# -- checks in processes of their own ------------------------------------------------------------------------------


def test_a_check_whose_process_dies_is_recorded_with_the_signal(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = command.run_check("card", tmp_path / "card", 60, ON_CPU)
    assert (outcome.status, outcome.message) == ("failed", "ended by SIGSEGV")


def test_one_check_that_fails_stops_no_other_and_the_exit_status_is_1(tmp_path, monkeypatch, capsys):
    def run_check(name, folder, limit, options):
        return {outcome.check: outcome for outcome in outcomes()}.get(name, Outcome(check=name, status="done"))

    monkeypatch.setattr(command, "run_check", run_check)
    out = tmp_path / "folder" / "found.json"
    options = Namespace(**vars(ON_CPU) | {"out": out})
    assert command.run_checks(["step", "card"], options) == 1
    assert [made["status"] for made in json.loads(out.read_text())["checks"]] == ["failed", "done"]
    assert "cpu: 0 bars held, 1 missed" in capsys.readouterr().out
    assert command.run_checks(["card"], options) == 0


@pytest.mark.slow
def test_the_command_runs_a_check_on_a_cpu_and_prints_one_object():
    arguments = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--only", "attention", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert (done.returncode, found["missed"], found["scale"], found["held"]) == (0, 0, "tiny", 4)
    [made] = found["checks"]
    assert made["facts"].keys() == {"commit", "date", "versions", "machine", "driver"}


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [REAL, TINY], ids=["real", "tiny"])
def test_a_step_by_parts_has_the_settings_of_the_recipe(check, scale):
    check.scale = scale
    ours, recipe = step.read_settings(check), step.read_recipe(check, {"model": "m"})
    stage = step.stage_of(recipe)[1]
    names = ("prompts_per_step", "samples_per_prompt", "context", "tokens_per_micro_batch", "gradient_checkpointing")
    for name in (*names, "slots", "cache_memory"):
        assert getattr(ours, name) == getattr(stage, name), name
    for name, value in ours.env.items():
        assert name == "index" or getattr(stage.env, name) == value
    assert ours.optimisation() == step.Optimisation(**stage.optimisation())
    assert (ours.seed, ours.temperature) == (recipe.seed, stage.sampling.temperature)
    assert (ours.normalise, stage.loss.constant) == (stage.loss.normalise, None)
    assert ours.loss == {"clip_low": stage.loss.clip_low, "clip_high": stage.loss.clip_high}
