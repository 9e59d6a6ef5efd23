"""A short run of the tiny base model in a small world, alone or with servers, and readers of its results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sleuth.cli.pipeline import run_recipe
from sleuth.recipe import load_recipe
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.rollouts import read_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.world.write_world import write_world

BASE = Path(__file__).parents[1] / "models" / "tiny-base"
CONTEXT = 512
RECIPE = """
name = "tiny"
model = "{base}"
seed = 0

[[stage]]
kind = "grpo"
steps = {steps}
prompts_per_step = 8
samples_per_prompt = 8
learning_rate = 5e-4
schedule = "cosine"
warmup_steps = 5
slots = 64
context = {context}
tokens_per_micro_batch = 2048
save_every = 1000
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 32 }}
reward = [{{ kind = "answer" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl" }}
"""

Written = tuple[tuple[int, ...], ...]
"""The tokens that the policy sampled in an episode, turn by turn."""


def write_recipe(folder: Path, steps: int) -> Path:
    """A world of 1,000 people with its index, and a recipe of `steps` steps in it."""
    world = folder / "world"
    write_world(world, seed=0, people=1000)
    build_index(world / "corpus.jsonl", world / "index")
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(base=BASE, world=world, steps=steps, context=CONTEXT))
    return recipe


def train(recipe: Path, folder: Path, *overrides: str, **pool: Any) -> float:
    """Runs the recipe in a folder, with a pool of these settings if given; returns the seconds."""
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in pool.items())
    resolved = load_recipe(recipe, (*overrides, *([f"stage.0.engine={{ {table} }}"] if pool else [])))
    started = time.monotonic()
    with RunFolder.open(folder, resolved) as place:
        run_recipe(resolved, place)
    return round(time.monotonic() - started, 1)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The figures of every step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def exact_match(folder: Path) -> dict[str, float]:
    """The exact match of the last weights, with its interval."""
    return json.loads((folder / "eval" / "trained.json").read_text())["em"]


def evaluated(folder: Path) -> list[dict[str, Any]]:
    """The records of that evaluation, by question."""
    return json.loads((folder / "eval" / "trained.json").read_text())["records"]


def episodes(folder: Path, step: int) -> list[tuple[tuple[str, int], Written]]:
    """The episodes of a step by task and sample number."""
    return [
        (
            (episode.task.id, episode.sample),
            tuple(segment.tokens for segment in episode.trajectory.segments if segment.author == "policy"),
        )
        for group in read_rollouts(folder / "rollouts" / f"step-{step:06d}.parquet")
        for episode in group.episodes
    ]
