"""Files with a single part of a recipe: a `[judge]`, `[[reward]]` tables, or a `[teacher]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from sleuth.recipe.draft import Draft
from sleuth.recipe.judges import JudgeFields, JudgeTable, TeacherRecipe
from sleuth.recipe.load import read_toml, resolve_functions
from sleuth.recipe.problems import Look, read_table
from sleuth.recipe.rewards import RewardFields, RewardTable
from sleuth.recipe.strict import Row, StrictModel
from sleuth.types import SleuthError

Part = TypeVar("Part", bound=StrictModel)


class JudgeFile(StrictModel):
    """A judge file."""

    judge: JudgeTable
    """The judge."""


class RewardFile(StrictModel):
    """A reward file."""

    reward: Annotated[Row[RewardTable], Field(min_length=1)]
    """The rewards; the score is their weighted sum."""


class TeacherFile(StrictModel):
    """A teacher file."""

    teacher: TeacherRecipe
    """The model that generates data."""


def load_judge(path: Path, look: Look | None = None) -> JudgeFields:
    """The `[judge]` of a judge file. Raises a `SleuthError` with a line for each problem."""
    return _load(path, JudgeFile, look).judge


def load_rewards(path: Path, look: Look | None = None) -> tuple[RewardFields, ...]:
    """The `[[reward]]` tables of a reward file. Raises a `SleuthError` with a line for each problem."""
    return _load(path, RewardFile, look).reward


def load_teacher(path: Path, look: Look | None = None) -> TeacherRecipe:
    """The `[teacher]` of a teacher file. Raises a `SleuthError` with a line for each problem."""
    return _load(path, TeacherFile, look).teacher


def _load(path: Path, model: type[Part], look: Look | None) -> Part:
    if not path.is_file():
        raise SleuthError(f"{path}: no such file")
    draft = Draft(str(path))
    draft.merge(read_toml(path), str(path))
    draft.table = resolve_functions(draft.table, [str(path)])
    return read_table(draft, model, look)
