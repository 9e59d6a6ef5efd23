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
from benchmarks.gpu import card, graphs, learner, peers, sampler, sizes, step
from benchmarks.gpu.card import peak_flops, planned_card
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.figures import Figure, Kept, Outcome, results, table
from benchmarks.gpu.profiled import Profiled, short_name
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


def test_a_side_without_memory_and_a_peer_that_is_not_installed_are_lines(check, monkeypatch):
    def no_memory(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(peers, "_padded", no_memory)
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    peers.peers(check)
    lines = [
        "padded, 4 rows: out of memory",
        "padded, 8 rows: out of memory",
        "TRL: no trl and no datasets and no accelerate",
    ]
    assert skipped(check) == lines
    assert "padded over ours" not in figures(check)
    assert figures(check)["ours, nothing recomputed"].value > 0


# -- what only a card has, answered for it --------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch) -> None:
    """The checks take the branches of a card, whose counters answer, and compute on the CPU."""
    monkeypatch.setattr(Check, "on_card", True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**10))
    for name, answer in {"memory_allocated": 5_000, "max_memory_allocated": 20 * 10**9}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    for name in ("reset_peak_memory_stats", "empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    h100 = {"name": "NVIDIA H100 80GB HBM3", "total_memory": 85 * 10**9, "multi_processor_count": 132}
    properties = SimpleNamespace(**h100, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.usefixtures("pretended")
def test_a_card_whose_launches_the_profiler_cannot_see_says_so(check):
    sampler.even(check)
    assert any("launches of a step: torch's profiler sees none here" in line for line in skipped(check))
    assert figures(check)["asleep: left on the card, share"].value == 0


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


def test_the_driver_is_queried_and_nothing_is_set(monkeypatch):
    calls: list[list[str]] = []

    def run(arguments, **options):
        calls.append(arguments)
        if arguments[-1] == "--id=GPU-x":
            raise subprocess.CalledProcessError(6, arguments)
        answer = "580.1, 1980 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 320.5 W, 700.00 W, 41, P0\n"
        return subprocess.CompletedProcess(arguments, 0, stdout=answer)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    monkeypatch.setattr(card.subprocess, "run", run)
    driver = card.driver(torch.device("cuda"))
    assert (driver["driver_version"], driver["clocks.sm"], driver["power.limit"]) == ("580.1", "1980 MHz", "700.00 W")
    assert all(one[1].startswith("--query-gpu=") for one in calls)
    assert [one[-1] for one in calls] == ["--id=GPU-x", "--id=0"]
    assert card.driver(torch.device("cpu")) == {}


@pytest.mark.usefixtures("pretended")
def test_the_peak_of_each_phase_is_held_against_the_plans(check):
    peaks = {"rollout": 20 * 10**9, "update": 20 * 10**9}
    step._report_memory(check, peaks, {"rollout": 19 * 10**9, "update": 15 * 10**9})
    found = figures(check)
    assert found["update: peak memory"].value == 20
    assert found["rollout: peak memory, of the plan's"].held
    assert not found["update: peak memory, of the plan's"].held


# -- launches, peaks and names -------------------------------------------------------------------------------------


FUNCTOR = "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>"


@pytest.mark.parametrize(
    ("kernel", "short", "kind"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*> >"
         "(int, std::array<char*>)", "vectorized_elementwise_kernel CUDAFunctor_add", "other"),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_"
         "cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)", "elementwise_kernel direct_copy_kernel_cuda", "other"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNT", "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNT", "products"),
        ("triton_tem_fused_flex_attention_backward_0", "triton_tem_fused_flex_attention_backward_0", "attention"),
        ("_attend_parts", "_attend_parts", "attention"),
        ("_rotate_and_write", "_rotate_and_write", "fused"),
        ("_find_token", "_find_token", "sampling"),
        (f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{FUNCTOR}>(int)",
         "multi_tensor_apply_kernel FusedAdamMathFunctor", "optimiser"),
        ("at::native::(anonymous namespace)::fused_kernel(int)", "at::native::fused_kernel", "other"),
    ],
)  # fmt: skip
def test_a_kernels_name_is_shortened_and_has_a_kind(kernel, short, kind):
    assert short_name(kernel) == short
    seen = Profiled(kernels={short_name(kernel): (2, 0.5)}, launches=2, waiting=0.0, seconds=1.0)
    assert seen.by_kind() == {kind: 1.0}


@pytest.mark.parametrize(
    ("name", "planned", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80", 989),
        ("NVIDIA H100 PCIe", None, 756),
        ("NVIDIA H200", "h200-141", 989),
        ("NVIDIA A100-SXM4-80GB", "a100-80", 312),
        ("NVIDIA B200", "b200-180", 2250),
        ("cpu", None, None),
    ],
)
def test_the_card_of_the_plan_and_the_peak_are_found_by_the_name(name, planned, teraflops):
    found = planned_card(name)
    assert (None if found is None else found.name) == planned
    assert peak_flops(name) == (None if teraflops is None else teraflops * 1e12)


# -- bars, table and object ----------------------------------------------------------------------------------------


def outcomes() -> list[Outcome]:
    kept = Figure(check="update", name="utilisation, of the peak", value=0.31, at_least=0.25, seconds=12.3)
    low = Figure(check="update", name="tokens", value=123_456.7, unit="tokens/s", at_least=2e5, seconds=0.5)
    plain = Figure(check="update", name="peak memory, whatever it may be called here", value=14.2, unit="GB")
    return [
        Outcome(check="update", status="done", figures=[kept, low, plain], skipped=["a reason " * 20], seconds=13.0),
        Outcome(check="step", status="failed", message="OutOfMemoryError: no room " * 8, seconds=2.0),
    ]


def test_the_table_is_80_columns_wide_and_shows_what_was_missed():
    lines = table(outcomes(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    [missed] = [line for line in lines if " NO " in line]
    assert missed.split()[:2] == ["update", "tokens,"]
    assert "123,457" in missed
    assert ">= 200,000" in missed
    assert any(line.startswith("step       FAILED: OutOfMemoryError") for line in lines)
    assert any(line.startswith("update     skipped: a reason") for line in lines)


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


def test_checks_for_which_no_time_is_left_are_missed(capsys):
    options = Namespace(**vars(ON_CPU) | {"seconds": 0})
    assert command.run_checks(["card", "update"], options) == 1
    assert capsys.readouterr().out.count("NOT RUN: no time was left") == 2


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


def test_a_check_with_no_such_name_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--only", "memory"])
    assert command.main() == 2
    assert "--only memory: no check has this name; there are card, step" in capsys.readouterr().err


def test_a_group_without_checks_is_refused_and_the_first_is_the_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--group", "7"])
    assert command.main() == 2
    assert "--group 7: there are 1, 2" in capsys.readouterr().err
    ran: list[list[str]] = []
    monkeypatch.setattr(command, "run_checks", lambda names, *of: ran.append(names) or 0)
    for arguments in ([], ["--group", "2"]):
        monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", *arguments])
        assert command.main() == 0
    assert [names[:2] for names in ran] == [["card", "step"], ["qwen3_1.7b", "qwen2.5_3b"]]
    assert sorted(ran[0] + ran[1]) == sorted(CHECKS)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda patch: patch.setattr(torch.version, "cuda", None), "which was built without CUDA; name another"),
        (lambda patch: patch.setattr(torch, "__version__", "2.4.1+cu121"), "has torch 2.4.1+cu121, and Sleuth needs"),
        (lambda patch: patch.setattr(sys, "version_info", (3, 10, 2)), "is Python 3.10, and Sleuth needs 3.11"),
        (lambda patch: patch.setattr(command.importlib.util, "find_spec", lambda name: None), "has no torch; name"),
        (lambda patch: patch.setattr(torch.version, "cuda", "13.0"), "finds no CUDA device"),
    ],
)
def test_what_is_missing_is_said_in_one_line(monkeypatch, change, expected):
    change(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = command.missing("cuda")
    assert line is not None
    assert expected in line
    assert "\n" not in line


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
