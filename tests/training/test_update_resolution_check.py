"""A rate that cannot move the weights is refused before the first step, with the arithmetic."""

from __future__ import annotations

from refusals import refused

from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import load_recipe

HALF = 'dtype="bfloat16"'


def test_a_rate_that_bfloat16_rounds_away_is_refused_with_the_arithmetic(recipe_file):
    require_inputs(load_recipe(recipe_file, [HALF, "stage.1.learning_rate=1e-4"]))
    require_inputs(load_recipe(recipe_file, ["stage.1.learning_rate=1e-7"]))
    said = refused(recipe_file, HALF, "stage.1.learning_rate=1e-9")
    assert said.startswith("stage.1 (grpo): learning_rate = 1e-09 can move 0.0")
    assert "4 steps move one by 4e-09 at most" in said
    assert "raise learning_rate or steps" in said
    assert "\n" not in said
