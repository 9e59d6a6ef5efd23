"""Sweeps: several runs that differ by a stage or two, and one table of their figures.

An arm lists its stages as RECIPE:NAME, such as `"careless.toml:pretraining"`, so that no setting is written twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from sleuth.recipe.draft import Draft, emit_value
from sleuth.recipe.load import load_recipe, read_draft
from sleuth.recipe.problems import Look, read_table
from sleuth.recipe.recipe import Recipe, StageFields
from sleuth.recipe.shipped import find_recipe
from sleuth.recipe.strict import Name, Row, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe
from sleuth.types import SleuthError


class ArmRecipe(StrictModel):
    """A run, and a line of the table."""

    name: Name
    """Name of the arm, in the table and as a folder."""
    stages: Annotated[Row[str], Field(min_length=1)]
    """Its stages in order, each as RECIPE:NAME; the recipe's path is relative to this file."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of these stages that differ in this arm, such as `{ "grpo.reward.1.weight" = 5.0 }`."""


class ArmTableRecipe(StrictModel):
    """The table of figures."""

    evaluation: Name
    """Name of the stage whose figures are shown; each arm must have it."""
    figures: Annotated[Row[str], Field(min_length=1)]
    """Names of the figures in `eval/NAME.json`. Those of another stage are STAGE:FIGURE, such as "gate:reward_mean" or
    "reasoning@gsm8k:mean_at_8"; arms without that stage have an empty cell."""
    against: Name | None = None
    """The arm that the others are compared with, text by text, in the first figure; absent: no comparison."""

    def source_of(self, figure: str) -> tuple[str, str]:
        """The evaluation file of a figure, without its ending, and the name of the figure there."""
        stage, colon, key = figure.rpartition(":")
        return (stage, key) if colon else (self.evaluation, figure)


class SweepRecipe(StrictModel):
    """The root table of a sweep file, such as `recipes/tiny/thinking_sweep.toml`."""

    name: Name
    """Name of the sweep."""
    model: str = ""
    """The base model of every arm, as in a recipe."""
    seeds: Annotated[Row[NonNegativeInt], Field(min_length=1)] = (0,)
    """Every arm is run once with each seed."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """As in a recipe."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """As in a recipe."""
    table: ArmTableRecipe
    """The figures to compare."""
    arm: Annotated[Row[ArmRecipe], Field(min_length=1)]
    """The runs, one for each line of the table."""

    @combination
    def _arm_names_fit(self) -> Iterator[str]:
        names = [arm.name for arm in self.arm]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f'arm.{index}.name = "{name}" is already the name of arm.{names.index(name)}; change it'
        if self.table.against not in (None, *names):
            yield f'table.against = "{self.table.against}" is not an arm; there are {", ".join(names)}'


def load_sweep(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), look: Look | None = None, only: Sequence[str] = ()
) -> tuple[SweepRecipe, dict[str, Recipe]]:
    """A checked sweep file, and the recipe of each arm by its name, with the first seed.

    `overrides` of the form STAGE.key=value change all stages of that name, others the file itself. With `look`, the
    inputs of the arms (of those in `only`, if given) are checked too. Raises a `SleuthError` with a line for each
    problem; a problem of several arms is reported for the first.
    """
    path = find_recipe(Path(path))
    stage_overrides = {text: name for text in overrides if (name := _stage_of(text)) is not None}
    draft, _ = read_draft(path, [text for text in overrides if text not in stage_overrides])
    if "arm" not in draft.table:
        raise SleuthError(f"{path}: has no [[arm]]; train a recipe without arms with `sleuth train`")
    recipe = read_table(draft, SweepRecipe)
    runs: dict[str, Recipe] = {}
    problems: dict[str, str] = {}
    for arm in recipe.arm:
        where = f'{path}: arm "{arm.name}"'
        arm_look = look if arm.name in (only or [arm.name]) else None
        try:
            runs[arm.name] = read_table(_draft(recipe, arm, where, path, stage_overrides), Recipe, arm_look)
        except SleuthError as error:  # raised below with the problems of the other arms
            for line in error.args:
                problems.setdefault(line.removeprefix(where), line)
    if problems:
        raise SleuthError(*problems.values())
    names = {stage.name: getattr(stage, "samples", None) for run in runs.values() for stage in run.stage}
    for figure in recipe.table.figures:
        source, key = recipe.table.source_of(figure)
        stage, at = source.partition("@")[0], re.fullmatch(r"(?:mean|pass)_at_(\d+)", key)
        if at and stage in names and names[stage] != int(at[1]):
            raise SleuthError(f"{path}: table.figures: {figure}: {stage} has samples = {names[stage]}; set {at[1]}")
        if stage not in names:
            known = ", ".join(sorted(names))
            raise SleuthError(f"{path}: table.figures: {figure}: no arm has a stage named {stage}; there are {known}")
    for text, name in stage_overrides.items():
        if name not in names:
            raise SleuthError(f"--set {text}: no arm has a stage named {name}; there are {', '.join(sorted(names))}")
    return recipe, runs


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether a TOML file is a sweep and not a recipe. Raises a one-line `SleuthError` if it cannot be read."""
    return "arm" in read_draft(path)[0].table


def own_stages(runs: Mapping[str, Recipe]) -> dict[str, list[int]]:
    """Indices of the stages that each arm runs, by its name: all but those of which an earlier arm has the checkpoints
    or has made the files."""
    earlier, made, own = list[Recipe](), set[Path](), dict[str, list[int]]()
    for name, run in runs.items():
        shared = max((shared_stage_count(run, other) for other in earlier), default=0)
        new = {at for at, stage in enumerate(run.stage) if made.isdisjoint(stage.makes())}
        own[name] = sorted(new - {at for at in run.stages_of(TrainingRecipe) if at < shared})
        made.update(*(stage.makes() for stage in run.stage))
        earlier.append(run)
    return own


def shared_stage_count(one: Recipe, other: Recipe) -> int:
    """Number of leading stages, up to one that trains, that are the same in both, so that their checkpoints can be
    reused."""
    if any(getattr(one, key) != getattr(other, key) for key in ("model", "seed", "dtype", "device")):
        return 0
    same = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(one.stage, other.stage, strict=False))]
    return max((at for at, stage in enumerate(same, start=1) if stage.trains), default=0)


def _draft(recipe: SweepRecipe, arm: ArmRecipe, where: str, path: Path, overrides: dict[str, str]) -> Draft:
    """The recipe of an arm, unchecked."""
    own = {f"{key}={emit_value(value)}": _stage_of(f"{key}=") for key, value in arm.set.items()}
    found = [_stage(reference, path, where, own | overrides) for reference in arm.stages]
    stages = [stage for stage, _ in found]
    if unknown := [key for key, name in own.items() if name not in {stage.name for stage in stages}]:
        raise SleuthError(*(f"{where}: set: {key}: should be STAGE.KEY of a stage of this arm" for key in unknown))
    if recipe.table.evaluation not in (stage.name for stage in stages):
        named = ", ".join(stage.name for stage in stages)
        raise SleuthError(
            f"{where}: has no stage named {recipe.table.evaluation}, which table.evaluation names; it has {named}"
        )
    draft = Draft(where)
    draft.table = {
        **recipe.model_dump(include={"model", "dtype", "device"}),
        "name": arm.name,
        "seed": recipe.seeds[0],
        "families": [*dict.fromkeys(name for _, families in found for name in families)],
        "stage": stages,
        "resolved_from": {"files": [str(path)], "set": [*own, *overrides]},
    }
    return draft


def _stage(
    reference: str, path: Path, where: str, overrides: Mapping[str, str | None]
) -> tuple[StageFields, Sequence[str]]:
    """The stage named by `reference`, such as `careless.toml:pretraining`, and the families of its recipe."""
    file, colon, name = reference.rpartition(":")
    if not colon or not file:
        raise SleuthError(f"{where}: stages = {reference!r}: should be RECIPE:NAME, such as careless.toml:pretraining")
    recipe = load_recipe(path.parent / file, [text for text, stage_name in overrides.items() if stage_name == name])
    if (stage := next((stage for stage in recipe.stage if stage.name == name), None)) is None:
        has = ", ".join(stage.name for stage in recipe.stage)
        raise SleuthError(f"{where}: {path.parent / file} has no stage named {name}; it has {has}")
    return stage, recipe.families


def _stage_of(text: str) -> str | None:
    """The stage that an override changes: `thinking` of `thinking.steps=5`; None for a key of the sweep file."""
    first, dot, _ = text.partition("=")[0].strip().partition(".")
    return first if dot and first not in SweepRecipe.model_fields else None
