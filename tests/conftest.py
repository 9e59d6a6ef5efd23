"""Fixtures of all tests: a small generated world, a recipe of a few steps in it on the tiny base model, and its runs.

Being in this folder, it lets tests import shared modules such as `chat_server`; it adds the root for `benchmarks`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sleuth.recipe import load_recipe
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.metrics import meaning_of
from sleuth.runs.run_folder import RunFolder
from sleuth.threads import prepare_waiting
from sleuth.world.write_world import write_world

prepare_waiting()  # nothing above loads torch
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RECIPE = """
name = "small"
model = "{model}"
seed = 4

[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{world}/qa_test.jsonl", limit = 12 }}

[[stage]]
kind = "grpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-3
slots = 32
context = 400
save_every = 2
probe_prompts = 4
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index" }}
reward = [{{ kind = "answer" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 12 }}
"""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "world", seed=0, people=200)
    build_index(folder / "world" / "corpus.jsonl", folder / "world" / "index")
    return folder / "world"


@pytest.fixture
def recipe_file(world: Path, tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(RECIPE.format(world=world, model=ROOT / "models" / "tiny-base"))
    return file


@pytest.fixture
def run() -> Callable[..., Path]:
    """Runs a recipe, with overrides, in a folder; returns the last checkpoint."""
    from sleuth.pipeline import run_recipe  # loads torch, which reads the environment once

    def run_it(recipe: Path, folder: Path, *overrides: str) -> Path:
        resolved = load_recipe(recipe, overrides)
        with RunFolder.open(folder, resolved) as place:
            return run_recipe(resolved, place)

    return run_it


@pytest.fixture(autouse=True)
def every_figure_is_in_the_glossary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test whose run writes a figure that docs/reference/metrics does not explain."""
    write = RunFolder.write_metrics

    def checked(self: RunFolder, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        unknown = [name for name in figures if meaning_of(name) is None]
        assert not unknown, f"sleuth.runs.metrics.GLOSSARY has no {unknown}"
        write(self, stage, step, figures)

    monkeypatch.setattr(RunFolder, "write_metrics", checked)
