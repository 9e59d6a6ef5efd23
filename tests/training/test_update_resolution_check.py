"""A rate that cannot move the weights is refused before the first step, with the arithmetic."""

from __future__ import annotations

from pathlib import Path

from refusals import refused

from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import load_recipe

HALF = 'dtype="bfloat16"'


def test_a_rate_that_bfloat16_rounds_away_is_refused_with_the_arithmetic(recipe_file: Path) -> None:
    said = refused(recipe_file, HALF, "stage.1.learning_rate=1e-7", "stage.1.master_weights=false")
    assert said.startswith("stage.1 (grpo): learning_rate = 1e-07 can move 0.0")
    assert "(|w|/512 to |w|/256) is rounded away" in said
    assert "with master_weights = true small steps add up" in said
    assert "\n" not in said


def test_masters_are_refused_only_where_all_steps_together_are_too_few(recipe_file: Path) -> None:
    require_inputs(load_recipe(recipe_file, [HALF, "stage.1.learning_rate=1e-4"]))
    require_inputs(load_recipe(recipe_file, [HALF, "stage.1.learning_rate=1e-3", "stage.1.master_weights=false"]))
    require_inputs(load_recipe(recipe_file, ["stage.1.learning_rate=1e-7"]))
    said = refused(recipe_file, HALF, "stage.1.learning_rate=1e-9")
    assert "4 steps move one by 4e-09 at most" in said
    assert "raise learning_rate or steps" in said


def test_float32_weights_need_no_masters_to_leave_out(recipe_file: Path) -> None:
    said = refused(recipe_file, "stage.1.master_weights=false")
    assert 'stage.1.master_weights = false has no effect with dtype = "float32"' in said
