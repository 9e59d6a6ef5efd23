"""The gate before a rewarded stage: what it measures, how it decides, and what a run that misses it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from chat_server import MODEL, ChatServer
from continuations import BASE
from refusals import refused
from verb import sleuth

from sleuth.cli import pipeline
from sleuth.evaluation.intervals import UNMEASURED, Measured
from sleuth.report import write_report
from sleuth.think.reward_gate import verdict
from sleuth.types import SleuthError, StoppedByRule

Run = Callable[..., Path]
RECIPE = """
name = "gated"
model = "{model}"
seed = 3

[[stage]]
kind = "supervised"
name = "shown"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "thoughts", texts = "{world}/text_train.jsonl", limit = 4 }}

[[stage]]
kind = "gate"
name = "gate"
samples = 3
data = {{ kind = "places", texts = "{world}/text_test.jsonl", suffix_tokens = 8, limit = 6 }}
env = {{ kind = "thought", thought_tokens = 8, close = "earned" }}
reward = [{{ kind = "gain" }}]

[[stage]]
kind = "grpo"
name = "gain"
steps = 1
prompts_per_step = 2
samples_per_prompt = 3
learning_rate = 1e-3
context = 400
data = {{ kind = "places", texts = "{world}/text_train.jsonl", part = "rl", suffix_tokens = 8, limit = 20 }}
env = {{ kind = "thought", thought_tokens = 8 }}
reward = [{{ kind = "gain" }}]
loss = {{ setting = "dr_grpo", constant = 8, old_logprobs = "learner" }}
"""
ALIKE = "stage.1.reward=[{kind='suffix', judge='ending'}]"  # a model that never answers rightly: all scores are 0
WRITES = "stage.1.env.suffix_tokens=2"


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    file = tmp_path / "gated.toml"
    file.write_text(RECIPE.format(model=BASE, world=world))
    return file


def gate_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "eval" / "gate.json").read_text())


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def share_of(value: float) -> Measured:
    return Measured(value=value, low=value / 2, high=1.0, n=64)


@pytest.mark.parametrize(
    ("missing", "no_signal", "claim"),
    [
        (0.05, 0.5, None),
        (0.0, 0.51, "51.0% of the groups are without signal (0.26 to 1.00 of 64 groups), and at most 50% may be"),
        (0.06, 0.0, "6.0% of the scores are missing (0.03 to 1.00 of 64 groups), and at most 5% may be"),
        (0.0, None, "it is not known which share of the groups are without signal"),
    ],
)
def test_a_gate_is_passed_at_its_limits_and_not_beyond_and_never_by_what_is_unknown(
    missing: float, no_signal: float | None, claim: str | None
) -> None:
    figures = {"missing": share_of(missing), "no_signal": UNMEASURED if no_signal is None else share_of(no_signal)}
    limits = {"missing": 0.05, "no_signal": 0.5}
    found = verdict(figures, limits, 64)
    assert (found["passes"], found["limits"]) == (claim is None, limits)
    assert claim in (None, found["claim"])


def test_a_run_that_passes_goes_on_and_its_figures_are_those_of_its_episodes(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    run(recipe, tmp_path / "run")
    found = gate_of(tmp_path / "run")
    scores = [record["scores"] for record in found["records"]]
    assert [len(of_group) for of_group in scores] == [3] * 6
    assert found["reward_mean"]["value"] == pytest.approx(fmean(map(fmean, scores)))
    assert found["no_signal"]["value"] == fmean(len(set(of_group)) == 1 for of_group in scores)
    assert found["thought_tokens"]["value"] == pytest.approx(sum(record["tokens"] for record in found["records"]) / 18)
    assert found["gate"]["passes"]
    assert manifest_of(tmp_path / "run")["gates"] == {"gate": found["gate"]}
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()


def test_a_run_that_misses_its_gate_ends_in_one_line_and_keeps_what_was_done(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):  # the second time nothing is measured
        done = sleuth("train", recipe, "--run", folder, "--quiet", "--set", ALIKE, "--set", WRITES)
        assert (done.exit_code, done.stdout) == (3, "")
        [line] = done.stderr.splitlines()
        assert line.startswith(f"{folder}: stopped at the gate gate: 100.0% of the groups are without signal (")
        assert "so gain is not trained" in line
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000001"]
    found = gate_of(folder)
    assert (found["reward_mean"]["value"], found["missing"]["value"], found["gate"]["passes"]) == (0, 0, False)
    assert manifest_of(folder)["gates"]["gate"] == found["gate"]
    page = write_report(folder).read_text()
    assert "gate: missed, 100.0% of the groups are without signal" in page
    assert line.endswith(
        "--set gate.max_missing_fraction=1.0 and --set gate.max_no_signal_fraction=1.0 trains it all the same"
    )
    wider = "gate.max_no_signal_fraction=1.0"
    assert sleuth("train", recipe, "--run", folder, "--set", ALIKE, "--set", WRITES, "--set", wider).exit_code == 0
    assert gate_of(folder)["records"] == found["records"]
    assert manifest_of(folder)["gates"]["gate"]["passes"]
    assert (folder / "checkpoints" / "step-000002").is_dir()


def judged_by(server: ChatServer) -> tuple[str, ...]:
    judge = f"{{kind='http', urls=['{server.url}'], model='{MODEL}'}}"
    return f"stage.1.reward=[{{kind='suffix', judge={judge}}}]", WRITES, "stage.1.env.close=inserted"


def test_a_judge_that_is_gone_when_the_gate_begins_is_one_line_and_decides_nothing(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_read_inputs", lambda recipe: {})  # all was there when the run began
    with ChatServer(models=(200, {"data": [{"id": "another"}]})).running() as server:
        with pytest.raises(SleuthError, match=r"the judge of the suffix reward: .* does not serve it"):
            run(recipe, tmp_path / "run", *judged_by(server))
        assert not (tmp_path / "run" / "eval" / "gate.json").exists()
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]
        server.models = ChatServer().models
        bar = "stage.1.reward.0.judge.least_accuracy=0.8"
        with pytest.raises(SleuthError, match=r"the judge of the suffix reward, .* of an exam's suffixes "):
            run(recipe, tmp_path / "barred", *judged_by(server), bar)
        with pytest.raises(StoppedByRule, match=r"without signal|missing"):  # it is asked now, and knows no true suffix
            run(recipe, tmp_path / "run", *judged_by(server))


def test_verdicts_that_are_missing_are_no_zeros_and_no_signal(run: Run, recipe: Path, tmp_path: Path) -> None:
    refuses = ChatServer(answer=lambda body: (400, {"error": "no"}))
    unknown = r"of the scores are missing.*; it is not known which share"
    with refuses.running() as server, pytest.raises(StoppedByRule, match=unknown):
        run(recipe, tmp_path / "run", *judged_by(server))
    found = gate_of(tmp_path / "run")
    assert found["missing"]["value"] == 1
    assert not {"reward_mean", "no_signal"} & found.keys()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (ALIKE, "stage.1.env.suffix_tokens is missing"),
        ("stage.1.env.least_thought_tokens=4", "a thought has the same budget in all steps"),
        ("stage.1.samples=1", "stage.1.samples = 1: should be"),
        ("stage.1.reward=[{kind='gain'},{kind='gain'}]", 'stage.1.reward has kind = "gain" twice'),
    ],
)
def test_what_does_not_fit_a_gate_is_refused(recipe: Path, override: str, reason: str) -> None:
    assert reason in refused(recipe, override)
