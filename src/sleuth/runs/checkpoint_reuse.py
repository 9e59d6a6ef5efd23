"""A run that begins as another one did takes over what that one has trained, and is the same as if it had not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from sleuth.recipe import Recipe, TrainingRecipe, load_recipe
from sleuth.recipe.sweep import begun_alike
from sleuth.runs.atomic import replacing_folder
from sleuth.runs.checkpoints import checkpoints_in, resumable, step_name
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.run_folder import RunFolder


def reuse_checkpoints(run: RunFolder, others: Iterable[Path]) -> None:
    """Where `run` has trained nothing yet: the checkpoints at the ends of the stages that it shares with one of the run
    folders `others`, and the rows of their figures, from the one that shares most. Draws are keyed by seed and stage,
    so that these are the bytes which the run would have come to. Files are linked where the disk allows it."""
    if checkpoints_in(run.checkpoints):
        return
    done = [(other, ends) for other in others if other != run.path and (ends := _shared_ends(run.recipe, other))]
    if not done:
        return
    other, ends = max(done, key=lambda pair: len(pair[1]))
    rows = MetricsFile(other / "metrics.jsonl").rows()
    for stage, _ in ends:
        run.metrics.rewind(stage, 0)  # of a process that was killed here
        for row in (row for row in rows if row["stage"] == stage):
            figures = {name: value for name, value in row.items() if name not in ("stage", "step")}
            run.metrics.append(stage, row["step"], figures)
    for _, end in ends:
        with replacing_folder(run.checkpoints / end.name) as partial:
            shutil.copytree(end, partial, copy_function=_linked, dirs_exist_ok=True)
    run.say(f"{' and '.join(stage for stage, _ in ends)}: as in {other}, and taken over from there")


def _shared_ends(recipe: Recipe, other: Path) -> list[tuple[str, Path]]:
    """The stages that `other` has trained to their ends as `recipe` says too, with the checkpoints they ended with."""
    if not (other / "recipe.toml").is_file():
        return []
    shared = begun_alike(recipe, load_recipe(other / "recipe.toml"))
    ends, first_step = [], 0
    for stage in recipe.stage[:shared]:
        if not isinstance(stage, TrainingRecipe):
            continue
        end = other / "checkpoints" / step_name(first_step + stage.last_step)
        if not resumable(end):
            break
        ends.append((stage.name, end))
        first_step += stage.steps
    return ends


def _linked(source: str, target: str) -> None:
    """No file of a checkpoint is written a second time: one that changes is replaced."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
