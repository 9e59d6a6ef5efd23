"""The demo as an experiment: searching is learned, and nothing is learned in the control arms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reading import share_read

from sleuth.cli.pipeline import run_recipe
from sleuth.recipe import load_recipe
from sleuth.retrieval.bm25 import Bm25, build_index
from sleuth.runs.run_folder import RunFolder
from sleuth.world.write_world import write_world

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning") / "world"
    write_world(folder, seed=0, people=2000)
    build_index(folder / "corpus.jsonl", folder / "index")
    return folder


def figures(recipe: str, world: Path, run: Path, *overrides: str) -> tuple[dict[str, Any], ...]:
    """The evaluation files of the base, of the base with forced search, and of the trained model."""
    places = [
        f"model={ROOT / 'models' / 'tiny-base'}",
        f"stage.0.data.questions={world / 'qa_test.jsonl'}",
        f"stage.1.data.questions={world / 'qa_train.jsonl'}",
        f"stage.2.data.questions={world / 'qa_test.jsonl'}",
        f"stage.1.env.index={world / 'index'}",
    ]
    resolved = load_recipe(ROOT / "recipes" / recipe, [*places, *overrides])
    with RunFolder.open(run, resolved) as folder:
        run_recipe(resolved, folder)
    names = ("base", "base_forced", "trained")
    return tuple(json.loads((run / "eval" / f"{name}.json").read_text()) for name in names)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tiny_model_learns_to_search(seed: int, world: Path, tmp_path: Path) -> None:
    assert_learned(*figures("demo.toml", world, tmp_path / "run", f"seed={seed}"))


def assert_learned(base: dict[str, Any], forced: dict[str, Any], trained: dict[str, Any]) -> None:
    assert 0.02 <= base["em"]["value"] <= 0.25
    assert trained["em"]["n"] >= 500
    assert trained["em_one_hop"]["value"] >= 0.75
    assert trained["em_two_hop"]["value"] >= 0.5
    assert trained["searches_two_hop"]["value"] >= 1.8
    assert base["searched"]["value"] < 0.5
    assert trained["searched"]["value"] > 0.95
    assert trained["query_recall"]["value"] >= base["query_recall"]["value"] + 0.2
    assert forced["em"]["value"] <= trained["em"]["value"] / 2


@pytest.mark.parametrize("arm", ["empty", "shuffled", "reward"])
def test_searching_is_not_learned_where_it_earns_no_reward(arm: str, world: Path, tmp_path: Path) -> None:
    base, _, trained = figures(f"tiny/control_{arm}.toml", world, tmp_path / "run")
    assert trained["em"]["value"] <= base["em"]["value"] + 0.05


def with_silent_habit(folder: Path, world: Path, *options: str) -> Path:
    tool = [sys.executable, ROOT / "tools" / "habit.py", "silent", ROOT / "models" / "tiny-base", world, folder]
    subprocess.run([*tool, *options], check=True)
    return folder


def test_a_base_that_never_searches_learns_nothing_by_the_reward_alone(world: Path, tmp_path: Path) -> None:
    silent = with_silent_habit(tmp_path / "silent", world)
    base, _, cold = figures("demo.toml", world, tmp_path / "cold", f"model={silent}")
    assert base["searched"]["value"] < 0.01
    assert cold["em"]["value"] < 0.05


def test_a_warm_start_teaches_a_base_to_search_that_seldom_does(world: Path, tmp_path: Path) -> None:
    places = [
        f"model={with_silent_habit(tmp_path / 'shy', world, '--steps', '160')}",
        f"stage.1.data.questions={world / 'qa_train.jsonl'}",
        f"stage.2.data.questions={world / 'qa_test.jsonl'}",
        f"stage.1.env.index={world / 'index'}",
    ]
    resolved = load_recipe(ROOT / "recipes" / "tiny" / "warm_start.toml", places)
    with RunFolder.open(tmp_path / "warm", resolved) as folder:
        run_recipe(resolved, folder)
    warm = json.loads((tmp_path / "warm" / "eval" / "trained.json").read_text())
    assert warm["em_one_hop"]["value"] >= 0.75
    assert warm["em_two_hop"]["value"] >= 0.5


def test_a_rebuilt_base_is_as_good_as_the_one_that_ships(world: Path, tmp_path: Path) -> None:
    """It reads search results; untrained it mostly guesses and seldom searches, and it can be trained."""
    resolved = load_recipe(ROOT / "recipes" / "tiny" / "base.toml")
    with RunFolder.open(tmp_path / "run", resolved) as folder:
        run_recipe(resolved, folder)
    rebuilt = max((tmp_path / "run" / "checkpoints").iterdir())
    assert share_read(str(rebuilt), Bm25(world / "index")) >= 0.9
    assert_learned(*figures("demo.toml", world, tmp_path / "demo", f"model={rebuilt}"))
