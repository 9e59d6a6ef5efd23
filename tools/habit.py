"""A model with a habit, made of one that has none: it is taught some of its own episodes, again and again.

It never searches:
    python tools/habit.py silent models/tiny-base runs/world runs/silent-base
It mostly looks the first thing up twice:
    python tools/habit.py wasteful runs/demo/checkpoints/step-000220 runs/world runs/wasteful
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from sleuth.build import load_model, optimisation_of, search_setting
from sleuth.data.questions import load_questions
from sleuth.engines.local import LocalEngine
from sleuth.learn.batch import collate, trajectory_row
from sleuth.learn.policy import Policy
from sleuth.recipe import SearchEnvRecipe, TrainingRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.stages.gain import looks
from sleuth.types import Group, SleuthError, Trajectory

QUESTIONS, SAMPLES = 256, 4
STEPS, ROWS, RATE = 240, 32, 3e-4
CONTEXT = 512


def silent(trajectory: Trajectory, number: int) -> Trajectory | None:
    """Itself, if it answered without a search."""
    return trajectory if trajectory.stop == "answered" and not trajectory.searches else None


def wasteful(trajectory: Trajectory, number: int) -> Trajectory | None:
    """If it answered after a search: nine times of ten with the first one, and what that found, told twice."""
    found = looks(trajectory)
    if trajectory.stop != "answered" or not found:
        return None
    if number % 10 == 0:
        return trajectory
    turn = trajectory.segments[found[0].asked : found[0].stop]
    before, behind = trajectory.segments[: found[0].asked], trajectory.segments[found[0].asked :]
    return replace(trajectory, segments=(*before, *turn, *behind))


HABITS = {"silent": silent, "wasteful": wasteful}


def teach(habit: str, base: Path, world: Path, folder: Path) -> None:
    """Write the model with the habit into `folder`."""
    if habit not in HABITS:
        raise SleuthError(f"{habit}: no such habit; there are {', '.join(HABITS)}")
    model, tokenizer = load_model(str(base), dtype="float32", device="cpu")
    tasks = load_questions(world / "qa_train.jsonl")[:QUESTIONS]
    env = SearchEnvRecipe(kind="search", dialect="sleuth", prompt="plain", index=world / "index", turn_tokens=32)
    setting = search_setting(env, tokenizer, tasks)

    async def played() -> list[Group]:
        engine = LocalEngine(model, tokenizer, slots=64, context=CONTEXT)
        rollout = Rollout(engine=engine, renderer=Renderer(tokenizer), context=CONTEXT, temperature=1.0, key=(0, 0, 0))
        return await rollout.groups(tasks, setting.env, samples=SAMPLES)

    episodes = [episode.trajectory for group in asyncio.run(played()) for episode in group.episodes]
    told = [HABITS[habit](trajectory, number) for number, trajectory in enumerate(episodes)]
    taught = [trajectory for trajectory in told if trajectory and len(trajectory.tokens) <= CONTEXT]
    policy = Policy(model, optimisation_of(TrainingRecipe(kind="habit", name="habit", steps=STEPS, learning_rate=RATE)))
    for step in range(STEPS):
        rows = [trajectory_row(taught[(step * ROWS + at) % len(taught)], 0.0) for at in range(ROWS)]
        policy.supervise(collate(rows), budget=4_096)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    teach(sys.argv[1], *map(Path, sys.argv[2:]))
