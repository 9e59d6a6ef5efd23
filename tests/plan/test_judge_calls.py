"""How many calls of judges a step makes, by the recipe alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.plan.fit import plan_for_cpu
from sleuth.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def calls(recipe: str, *overrides: str) -> dict[str, dict[str, int]]:
    plan = plan_for_cpu(load_recipe(RECIPES / f"{recipe}.toml", overrides), 10**12)
    return plan.as_json()["judge_calls_per_step"]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        ("refiner_4b_rubric", [], {"grpo": {"rubric": 256, "citation": 256}}),
        ("refiner_4b_balanced", [], {"grpo": {"rubric": 256, "citation": 256}}),
        (
            "refiner_4b_rubric",
            ['stage.3.reward.0.calls="per_rubric"', 'stage.3.reward.1.calls="per_claim"'],
            {"grpo": {"rubric": 256 * (5 + 3), "citation": 256 * 5 * 3}},
        ),
        (
            "refiner_4b_balanced",
            ['stage.1.reward.0.calls="per_rubric"', "stage.1.prompts_per_step=2"],
            {"grpo": {"rubric": 48, "citation": 16}},
        ),
        ("thinking_0.6b", [], {"self-improving": {"pairwise": 16 * 136}, "rlmt": {"suffix": 32}}),
        (
            "thinking_0.6b",
            ['stage.0.reward.0.orders="both"'],
            {"self-improving": {"pairwise": 16 * 136 * 2}, "rlmt": {"suffix": 32}},
        ),
        ("search_r1_slime_3b", [], {}),
        ("refiner_0.6b_single_gpu", [], {}),
    ],
)
def test_the_calls_of_a_step_follow_from_the_recipe(
    recipe: str, overrides: list[str], expected: dict[str, dict[str, int]]
) -> None:
    assert calls(recipe, *overrides) == expected


def test_the_verb_prints_them_and_what_is_assumed() -> None:
    result = sleuth("plan", RECIPES / "refiner_4b_rubric.toml", "--card", "8 x h100-80")
    assert result.exit_code == 0, result.stderr
    line = (
        "grpo: up to 512 judge calls a step (rubric 256, citation 256), with 5 criteria a row and 5 claims of two ids"
    )
    assert line in " ".join(result.stdout.split())
    told = json.loads(sleuth("plan", RECIPES / "refiner_4b_rubric.toml", "--card", "8 x h100-80", "--json").stdout)
    assert told["judge_calls_per_step"] == {"grpo": {"rubric": 256, "citation": 256}}
