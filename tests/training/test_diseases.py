"""Every alarm, by its disease: runs that are made ill in earnest after a few healthy steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import log, rows

from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.batch import has_gradient
from sleuth.runs.alarms import DETECTORS, RECENT
from sleuth.training.grpo import GRPOTrainer
from sleuth.types import SleuthError

pytestmark = pytest.mark.slow
HEALTHY = 12
LONG = (
    f"stage.1.steps={HEALTHY + 2 * RECENT}",
    "stage.1.learning_rate=1e-3",
    "stage.1.prompts_per_step=8",
    "stage.1.save_every=100",
    "stage.1.probe_prompts=0",
    "stage.0.data.limit=1",
    "stage.2.data.limit=1",
)


def raised(folder: Path) -> set[str]:
    return {name for row in rows(folder) for name in row.get("alarms", ())}


def falls_ill(monkeypatch: pytest.MonkeyPatch, disease: Callable[[GRPOTrainer], None]) -> None:
    """Once the run has been healthy for long enough to know what healthy is."""
    step = GRPOTrainer.step

    def sick(self: GRPOTrainer, number: int) -> dict[str, Any]:
        if number == HEALTHY + 1:
            disease(self)
            self.engine.publish(number)
        return step(self, number)

    monkeypatch.setattr(GRPOTrainer, "step", sick)


@torch.no_grad()
def forget_how_to_write(trainer: GRPOTrainer) -> None:
    for weight in trainer.model.parameters():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * weight.std())


@torch.no_grad()
def be_sure_of_everything(trainer: GRPOTrainer) -> None:
    trainer.model.get_decoder().norm.weight.mul_(30)


@torch.no_grad()
def never_search(trainer: GRPOTrainer) -> None:
    (tag,) = trainer.tokenizer.encode(trainer.worker.setting.dialect.search.open, add_special_tokens=False)
    trainer.model.get_input_embeddings().weight[tag].mul_(-3)  # tied: what was likely is what is least likely now


@pytest.mark.parametrize(
    ("disease", "alarm", "settings"),
    [
        (forget_how_to_write, "reward_collapse", ()),
        (forget_how_to_write, "length_runaway", ["stage.1.env.turn_tokens=60"]),  # room to write twice as much
        (be_sure_of_everything, "entropy_collapse", ()),
        (never_search, "tool_abandonment", ()),
    ],
)
def test_a_policy_that_falls_ill(run, recipe_file, tmp_path, monkeypatch, disease, alarm, settings):
    falls_ill(monkeypatch, disease)
    run(recipe_file, tmp_path / "run", *LONG, *settings)
    assert alarm in raised(tmp_path / "run")


def test_questions_that_nobody_can_answer(run, recipe_file, tmp_path, world):
    lines = (world / "qa_train.jsonl").read_text().splitlines()
    hopeless = [json.dumps(json.loads(line) | {"golden_answers": ["nobody knows"]}) for line in lines]
    (tmp_path / "hopeless.jsonl").write_text("\n".join(hopeless) + "\n")
    run(recipe_file, tmp_path / "run", *LONG, f'stage.1.data.questions="{tmp_path}/hopeless.jsonl"')
    assert raised(tmp_path / "run") == {"no_signal"}
    assert "every episode is wrong" in log(tmp_path / "run")


def test_a_sampler_that_never_gets_the_new_weights(run, recipe_file, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalEngine, "publish", lambda self, version: setattr(self, "policy_version", version))
    run(recipe_file, tmp_path / "run", *LONG, "stage.1.learning_rate=1e-2")
    assert "mismatch" in raised(tmp_path / "run")


def test_updates_too_small_for_the_weights_that_are_stored(run, recipe_file, tmp_path):
    run(recipe_file, tmp_path / "run", *LONG, 'dtype="bfloat16"', "stage.1.learning_rate=1e-6")
    assert "tiny_updates" in raised(tmp_path / "run")


def test_weights_that_are_no_numbers(run, recipe_file, tmp_path, monkeypatch):
    update = GRPOTrainer._update

    def broken(self: GRPOTrainer, *played: Any) -> dict[str, Any]:
        if has_gradient(*played):
            next(self.model.parameters()).data[0] = float("nan")  # a bit that flipped
        return update(self, *played)

    monkeypatch.setattr(GRPOTrainer, "_update", broken)
    with pytest.raises(SleuthError, match=r"stopped at step \d by not_finite"):
        run(recipe_file, tmp_path / "run", *LONG)
    assert raised(tmp_path / "run") == {"not_finite"}


def test_there_is_a_disease_here_for_every_alarm():
    caused = {"reward_collapse", "length_runaway", "entropy_collapse", "tool_abandonment"}
    of_families = {"gamed_reward", "hollow_thoughts"}  # tests/cite/test_red_team.py, tests/runs/test_alarms.py
    assert caused | {"no_signal", "mismatch", "tiny_updates", "not_finite"} | of_families == DETECTORS.keys()
