"""Several updates on a batch take their time in a plan, and no memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.host.hardware import CARDS, Cards
from sleuth.plan.fit import CardPlan, plan_for_cards
from sleuth.plan.shapes import PUBLISHED
from sleuth.recipe import load_recipe

RECIPE = """
name = "planned"
model = "{model}"
dtype = "bfloat16"

[[stage]]
kind = "grpo"
steps = 100
prompts_per_step = 16
samples_per_prompt = 8
learning_rate = 1e-6
context = 4096
data = {{ questions = "q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", retriever = "empty", turn_tokens = 256 }}
reward = [{{ kind = "answer" }}]
loss = {{ beta = 0.001 }}
"""


def planned(folder: Path, *overrides: str) -> CardPlan:
    (folder / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-0.6B"]))
    (folder / "planned.toml").write_text(RECIPE.format(model=folder))
    recipe = load_recipe(folder / "planned.toml", overrides)
    return plan_for_cards(recipe, Cards(card=CARDS["h100-80"], count=1))


def test_passes_multiply_the_update_and_minibatches_only_the_step_of_the_weights(tmp_path: Path) -> None:
    twice = "stage.0.updates_per_batch=2"
    plans = [planned(tmp_path, *more) for more in ((), (twice,), (twice, "stage.0.prompts_per_update=6"))]
    seconds = [plan.stages[0].step_seconds for plan in plans]
    for name in ("update", "reference pass"):
        assert seconds[1][name] == pytest.approx(2 * seconds[0][name])
    assert seconds[0]["rollout"] == seconds[1]["rollout"] == seconds[2]["rollout"]
    four_steps = seconds[2]["update"] - seconds[1]["update"]  # 2 passes of 3 minibatches, not of one
    assert 0 < four_steps < seconds[0]["update"]
    assert seconds[2]["reference pass"] == seconds[1]["reference pass"]
    assert len({plan.peak_memory_bytes for plan in plans}) == 1
