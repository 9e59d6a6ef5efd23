"""Recipes and tiny models that ship are found by name from any folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from shipped_recipes import RECIPES
from verb import sleuth

from sleuth.recipe import load_recipe
from sleuth.recipe.shipped import recipe_names
from sleuth.recipe.sweep import is_sweep, load_sweep


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_recipe_is_found_by_its_name_from_an_empty_folder() -> None:
    assert len(recipe_names()) == len(list(RECIPES.rglob("*.toml")))
    for name in recipe_names():
        if is_sweep(name):
            assert load_sweep(name)[1]
        else:
            assert load_recipe(name).stage == load_recipe(RECIPES / f"{name}.toml").stage


@pytest.mark.parametrize("name", ["demo", "demo.toml", "recipes/demo.toml"])
def test_a_tiny_model_comes_with_its_recipe(name: str) -> None:
    assert (Path(load_recipe(name).model) / "config.json").is_file()
    assert load_recipe(name, ["model=models/tiny-reader"]).model.endswith("models/tiny-reader")
    assert load_recipe(name, ["model=models/other"]).model == "models/other"


def test_what_is_here_comes_before_what_ships(empty: Path) -> None:
    (empty / "recipes").mkdir()
    (empty / "models/tiny-base").mkdir(parents=True)
    (empty / "recipes/demo.toml").write_text('extends = "tiny/refiner"\nname = "mine"\nmodel = "models/tiny-base"\n')
    (empty / "demo").mkdir()
    for name in ("recipes/demo.toml", "demo"):
        mine = load_recipe(name)
        assert (mine.name, mine.model, mine.stage) == ("mine", "models/tiny-base", load_recipe("tiny/refiner").stage)


def test_the_list_names_each_recipe_its_card_and_its_source_in_80_columns() -> None:
    lines = sleuth("recipes").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[:1] not in ("", " ", "P")] == recipe_names()
    cards = [line.split() for line in lines]
    at = cards.index(["search_r1_grpo_3b", "8", "x", "80", "GB"])
    assert lines[at + 1].startswith("  Search-R1's GRPO (arXiv:2503.09516, scripts v0.2)")
    assert ["refiner_4b_balanced", "8", "x", "80", "GB"] in cards, "a card is inherited"


def test_a_printed_recipe_is_the_same_recipe_in_any_folder(empty: Path) -> None:
    for name in ("tiny/credit", "tiny/control_empty", "refiner_4b_balanced_single_gpu"):
        printed = sleuth("recipes", name).stdout
        (empty / "mine.toml").write_text(printed)
        assert load_recipe("mine.toml").stage == load_recipe(name).stage
        assert tomllib.loads(printed)["extends"] in recipe_names()


@pytest.mark.parametrize(
    ("recipe", "missing"),
    [
        ("demo", '"runs/world/qa_test.jsonl": no such file; `sleuth world runs/world` writes it'),
        (
            "refiner_0.6b_single_gpu",
            "no such file; the commands of docs/tutorials/refiner.md#from-nothing-to-a-run write it",
        ),
    ],
)
def test_missing_data_is_named_with_what_writes_it(recipe: str, missing: str) -> None:
    assert any(line.endswith(missing) for line in sleuth("check", "recipe", recipe).stderr.splitlines())
