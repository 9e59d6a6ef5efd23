"""Every shipped recipe for a real model fits the cards that it names, by the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped_recipes import RECIPES, contents_of

from sleuth.host.hardware import read_cards
from sleuth.plan.fit import CardPlan, plan_for_cards
from sleuth.recipe import load_recipe
from sleuth.recipe.sweep import is_sweep

REAL = sorted(file for file in RECIPES.glob("*.toml") if file.stem != "demo" and not is_sweep(file))
SPARE = 0.1
"""The share of a card that must be left."""
AT_ONCE = 32
"""Typical sequences that the cache must hold, where a phase has as many."""
DERIVED = {
    "search_0.6b_24gb": "search_0.6b_single_gpu",
    "search_r1_slime_3b_single_gpu": "search_r1_slime_3b",
    "refiner_4b_rubric_single_gpu": "refiner_4b_rubric",
    "refiner_4b_balanced_single_gpu": "refiner_4b_balanced",
}
"""Recipes for a smaller machine -> what they are the same training as."""
PLAYING = ("rollout", "servers")
MEMORY_KEYS = {"tokens_per_micro_batch", "gradient_checkpointing", "cpu_offload", "slots", "cache_memory"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hub, as most machines that run the tests."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def plan_of(file: Path) -> CardPlan:
    recipe = load_recipe(file)
    assert recipe.card is not None, "it names no card"
    return plan_for_cards(recipe, read_cards(recipe.card))


@pytest.mark.parametrize("file", REAL, ids=lambda file: file.stem)
def test_a_recipe_for_a_real_model_fits_its_cards_with_a_tenth_to_spare(file: Path) -> None:
    plan = plan_of(file)
    assert plan.fits, plan.line()
    assert plan.spare >= SPARE, plan.line()
    for phase in plan.phases:
        assert phase.at_once >= min(AT_ONCE, phase.asked), (phase.stage, phase.name)


@pytest.mark.parametrize(("smaller", "whole"), DERIVED.items())
def test_a_recipe_for_a_smaller_machine_trains_the_same(smaller: str, whole: str) -> None:
    ours, theirs = contents_of(smaller), contents_of(whole)
    assert ours.pop("card") != theirs.pop("card")
    for table in (ours, theirs):
        for stage in table["stage"]:
            for key in MEMORY_KEYS & stage.keys():
                del stage[key]
            (stage.get("engine") or {}).pop("cards", None)
            for reward in stage.get("reward", ()):
                for key in ("urls", "launch", "cards"):
                    (reward.get("judge") or {}).pop(key, None)
    assert ours == theirs


@pytest.mark.parametrize("name", ["refiner_4b_rubric", "refiner_4b_balanced"])
def test_half_of_the_cards_of_a_refiner_train_and_half_serve_its_judge_included(name: str) -> None:
    plan = plan_of(RECIPES / f"{name}.toml")
    assert (plan.ranks, plan.servers, plan.others) == (4, 2, 2)
    judge = next(one for one in plan.phases if one.name == "server of Qwen/Qwen3.5-35B-A3B")
    assert judge.bytes["weights"] == 2 * 35e9 / 2  # bfloat16, on two cards
    rollout, servers = (next(one for one in plan.phases if (one.stage, one.name) == ("grpo", at)) for at in PLAYING)
    assert "cache" not in rollout.bytes
    assert servers.bytes["cache"] > 30e9
    assert plan.line().startswith("fits 8 x 80 GB, of which 2 have a server and 2 a judge or teacher, by the plan")
    alone = plan_of(RECIPES / f"{name}_single_gpu.toml")
    assert (alone.ranks, alone.servers) == (1, 0)
    assert all(one.bytes["server"] for one in alone.phases if one.stage == "grpo")
