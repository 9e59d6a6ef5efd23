"""Several runs that differ by a stage or two, as one table of them: `load_sweep`.

An arm names its stages, each by the recipe that has it: `"careless.toml:pretraining"`. No number is written twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from sleuth.recipe.draft import Draft
from sleuth.recipe.load import load_recipe, read_draft
from sleuth.recipe.problems import Look, read_table
from sleuth.recipe.recipe import Recipe, StageRecipe
from sleuth.recipe.strict import Name, Row, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe
from sleuth.types import SleuthError


class ArmRecipe(StrictModel):
    """One line of the table: a run."""

    name: Name
    """What the arm is called, in the table and as a folder."""
    stages: Annotated[Row[str], Field(min_length=1)]
    """Its stages in order, each as RECIPE:NAME; the recipe's path begins where this file lies."""


class ArmTableRecipe(StrictModel):
    """What is told of every arm."""

    evaluation: Name
    """The stage, one of every arm, whose figures are shown."""
    figures: Annotated[Row[str], Field(min_length=1)]
    """Which of them, as they are called in `eval/NAME.json`."""
    against: Name | None = None
    """The arm that the others are compared with, text by text, in the first of the figures."""


class SweepRecipe(StrictModel):
    """A file of arms. `load_sweep("recipes/tiny/thinking_sweep.toml").arm[0].name == "untouched"`."""

    name: Name
    """What the table is called."""
    model: str = ""
    """What every arm begins with, as in a recipe."""
    seeds: Annotated[Row[NonNegativeInt], Field(min_length=1)] = (0,)
    """Every arm is run once with each."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """As in a recipe."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """As in a recipe."""
    table: ArmTableRecipe
    """Which figures are compared."""
    arm: Annotated[Row[ArmRecipe], Field(min_length=1)]
    """The runs, one for each line of the table."""

    @combination
    def _names_are_there_once(self) -> Iterator[str]:
        names = [arm.name for arm in self.arm]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f'arm.{index}.name = "{name}" is the name of arm.{names.index(name)} too'
        if self.table.against not in (None, *names):
            yield f'table.against = "{self.table.against}" is no arm; there are {", ".join(names)}'


def load_sweep(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), look: Look | None = None, only: Sequence[str] = ()
) -> tuple[SweepRecipe, dict[str, Recipe]]:
    """Read and check a file of arms and the recipes that it names: the file, and every arm as the run that it is by
    itself, with the first seed. Of `overrides`, `STAGE.key=value` changes the stages of that name, any other one the
    file. With `look`, what the arms name is looked for too, or what those of `only` name. Raises a `SleuthError` with a
    line for each problem; one that several arms have is told of the first."""
    of_stages = {text: name for text in overrides if (name := _stage_of(text)) is not None}
    draft, _ = read_draft(path, [text for text in overrides if text not in of_stages])
    if "arm" not in draft.table:
        raise SleuthError(f"{path}: has no [[arm]]; a recipe without arms is for `sleuth train`")
    recipe = read_table(draft, SweepRecipe)
    runs: dict[str, Recipe] = {}
    problems: dict[str, str] = {}
    for arm in recipe.arm:
        where = f'{path}: arm "{arm.name}"'
        looked = look if arm.name in (only or [arm.name]) else None
        try:
            runs[arm.name] = read_table(_draft(recipe, arm, where, Path(path), of_stages), Recipe, looked)
        except SleuthError as error:  # told with what is wrong with the others
            for line in error.args:
                problems.setdefault(line.removeprefix(where), line)
    if problems:
        raise SleuthError(*problems.values())
    names = {stage.name for run in runs.values() for stage in run.stage}
    for text, name in of_stages.items():
        if name not in names:
            raise SleuthError(f"--set {text}: no arm has a stage named {name}; there are {', '.join(sorted(names))}")
    return recipe, runs


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether a TOML file has arms and is not a recipe. Raises a one-line `SleuthError` where it cannot be read."""
    return "arm" in read_draft(path)[0].table


def own_steps(runs: Mapping[str, Recipe]) -> dict[str, int]:
    """By arm, the optimiser steps that none before it has made for it."""
    earlier: list[Recipe] = []
    found = {}
    for name, run in runs.items():
        begun = max((begun_alike(run, other) for other in earlier), default=0)
        found[name] = sum(stage.last_step for stage in run.stage[begun:] if isinstance(stage, TrainingRecipe))
        earlier.append(run)
    return found


def begun_alike(one: Recipe, other: Recipe) -> int:
    """How many of their first stages are the same run, so that what one made of them the other need not make again. The
    last of them is one that trains."""
    if any(getattr(one, key) != getattr(other, key) for key in ("model", "seed", "dtype", "device")):
        return 0
    same = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(one.stage, other.stage, strict=False))]
    return max((at for at, stage in enumerate(same, start=1) if isinstance(stage, TrainingRecipe)), default=0)


def _draft(recipe: SweepRecipe, arm: ArmRecipe, where: str, path: Path, overrides: dict[str, str]) -> Draft:
    """The recipe of an arm, unchecked."""
    stages = [_stage(name, path, where, overrides) for name in arm.stages]
    if recipe.table.evaluation not in (stage.name for stage in stages):
        named = ", ".join(stage.name for stage in stages)
        raise SleuthError(
            f"{where}: has no stage named {recipe.table.evaluation}, of which the table is to be; it has {named}"
        )
    draft = Draft(where)
    draft.table = {
        **recipe.model_dump(include={"model", "dtype", "device"}),
        "name": arm.name,
        "seed": recipe.seeds[0],
        "stage": stages,
        "resolved_from": {"files": [str(path)], "set": [*overrides]},
    }
    return draft


def _stage(name: str, path: Path, where: str, overrides: dict[str, str]) -> StageRecipe:
    """The stage that an arm names `careless.toml:pretraining`."""
    file, colon, wanted = name.rpartition(":")
    if not colon or not file:
        raise SleuthError(f"{where}: stages = {name!r}: should be RECIPE:NAME, such as careless.toml:pretraining")
    load = partial(load_recipe, path.parent / file)
    names = [stage.name for stage in load().stage]
    if wanted not in names:
        raise SleuthError(f"{where}: {path.parent / file} has no stage named {wanted}; it has {', '.join(names)}")
    at = names.index(wanted)
    changes = [text.replace(wanted, f"stage.{at}", 1) for text, of in overrides.items() if of == wanted]
    try:
        return load(changes).stage[at]
    except SleuthError as error:  # in the words of whoever changed it
        raise SleuthError(*(line.replace(f"stage.{at}.", f"{wanted}.") for line in error.args)) from None


def _stage_of(text: str) -> str | None:
    """`thinking` of `thinking.steps=5`; None for a key of the file."""
    first, dot, _ = text.partition("=")[0].strip().partition(".")
    return first if dot and first not in SweepRecipe.model_fields else None
