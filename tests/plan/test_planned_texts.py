"""What a recipe that continues texts will take."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.plan.plan import plan_of
from sleuth.plan.probe import QUESTIONS, shortened
from sleuth.recipe import Recipe, WinRateRecipe, load_recipe

RECIPE = """
name = "planned"
model = "models/tiny-base"

[[stage]]
kind = "online_dpo"
steps = 100
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-3
data = { kind = "text", texts = "t.jsonl" }
reward = [{ kind = "pairwise", judge = { kind = "http", urls = ["http://127.0.0.1:8001"], model = "judge" } }]

[[stage]]
kind = "win_rate"
name = "against_base"
judge = "ending"
data = { kind = "text", texts = "t.jsonl", limit = 500 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "planned.toml").write_text(RECIPE)
    return tmp_path / "planned.toml"


def planned(recipe: Recipe) -> list[tuple[int, int, int, int | None]]:
    return [
        (stage.steps, stage.prompts, stage.episodes, stage.judge_calls)
        for stage in plan_of(recipe, {0: 1_000, 1: 500}).stages
    ]


def test_pools_are_counted_by_what_the_policy_writes_and_two_models_continue_what_is_held_out(file: Path) -> None:
    assert planned(load_recipe(file)) == [(100, 400, 3_200, None), (0, 500, 1_000, 0)]


def test_continued_pretraining_writes_nothing_and_asks_nobody(file: Path) -> None:
    assert planned(load_recipe(file, ['stage.0.loss.kind="original_nll"']))[0] == (100, 400, 0, 0)


def test_a_probe_continues_a_few_of_the_texts_that_are_held_out(file: Path) -> None:
    stage = shortened(load_recipe(file), steps=3).stage[1]
    assert isinstance(stage, WinRateRecipe)
    assert stage.data.limit == QUESTIONS < 500
