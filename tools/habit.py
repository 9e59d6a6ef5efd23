"""Train a model into a habit: supervised steps on a few kinds of its own episodes, repeated.

It never searches:
    python tools/habit.py silent models/tiny-base runs/world runs/silent-base
It mostly repeats its first search:
    python tools/habit.py wasteful runs/demo/checkpoints/step-000220 runs/world runs/wasteful
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sleuth.data.questions import load_questions
from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.batch import collate, trajectory_row
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.recipe import TrainingRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.search_gain import search_spans
from sleuth.search.setting import search_setting
from sleuth.search.tables import SearchEnvRecipe
from sleuth.types import Group, SleuthError, Trajectory

QUESTIONS, SAMPLES = 256, 4
ROWS, RATE = 32, 3e-4
CONTEXT = 512


def silent(played: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that answered without a search."""
    return [trajectory for trajectory in _answered(played) if not trajectory.searches]


def wasteful(played: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that answered after a search, in nine of ten with the first search and its results repeated."""
    searched = [trajectory for trajectory in _answered(played) if search_spans(trajectory)]
    return [trajectory if at % 10 == 0 else _repeat_first_search(trajectory) for at, trajectory in enumerate(searched)]


def _answered(played: Sequence[Trajectory]) -> list[Trajectory]:
    return [trajectory for trajectory in played if trajectory.stop == "answered"]


def _repeat_first_search(trajectory: Trajectory) -> Trajectory:
    first, *_ = search_spans(trajectory)
    before, behind = trajectory.segments[: first.query], trajectory.segments[first.query :]
    return replace(trajectory, segments=(*before, *trajectory.segments[first.query : first.stop], *behind))


HABITS = {"silent": (silent, 720), "wasteful": (wasteful, 240)}
"""The episodes of each, and for how many steps they are trained. After 240 silent steps, and with one seed of two after
480, the demo's reward still finds the search; after 720 it does not, and a search that is opened is of no use."""


def train(habit: str, base: Path, world: Path, folder: Path, steps: int | None) -> None:
    """Write the model with the habit into `folder`."""
    kept, usual = HABITS[habit]
    steps = usual if steps is None else steps
    if steps < 1:
        raise SleuthError(f"--steps {steps}: should be 1 or more")
    model, tokenizer = load_model(str(base), dtype="float32", device="cpu")
    tasks = load_questions(world / "qa_train.jsonl")[:QUESTIONS]
    env = SearchEnvRecipe(kind="search", dialect="sleuth", prompt="plain", index=world / "index", turn_tokens=32)
    setting = search_setting(env, tokenizer, tasks)

    async def played() -> list[Group]:
        engine = LocalEngine(model, tokenizer, slots=64, context=CONTEXT)
        rollout = Rollout(engine=engine, renderer=Renderer(tokenizer), context=CONTEXT, temperature=1.0, key=(0, 0, 0))
        return await rollout.groups(tasks, setting.env, samples=SAMPLES)

    chosen = kept([episode.trajectory for group in asyncio.run(played()) for episode in group.episodes])
    episodes = [trajectory for trajectory in chosen if len(trajectory.tokens) <= CONTEXT]
    if not episodes:
        raise SleuthError(f"{base}: none of its {QUESTIONS * SAMPLES} episodes is {habit}; use another base")
    stage = TrainingRecipe(kind="habit", name="habit", steps=steps, learning_rate=RATE)
    policy = Policy(model, Optimisation(**stage.optimisation()))
    for step in range(steps):
        rows = [trajectory_row(episodes[(step * ROWS + at) % len(episodes)], 0.0) for at in range(ROWS)]
        policy.supervise(collate(rows), budget=4_096)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    """The exit status; wrong input is reported in one line."""
    parser = argparse.ArgumentParser(description="Train a model into a habit.")
    parser.add_argument("habit", choices=HABITS)
    for name, what in (
        ("base", "a model"),
        ("world", "a folder of `sleuth world` with its index"),
        ("folder", "the new model's"),
    ):
        parser.add_argument(name, type=Path, help=what)
    parser.add_argument("--steps", type=int, help="for how many it is trained")
    options = parser.parse_args()
    try:
        train(options.habit, options.base, options.world, options.folder, options.steps)
    except SleuthError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
