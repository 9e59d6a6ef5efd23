"""Files that hold one part of a recipe: `[judge]` or `[[reward]]`; or `[teacher]`, who writes data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from sleuth.recipe.draft import Draft
from sleuth.recipe.judges import JudgeRecipe, JudgeTable, TeacherRecipe
from sleuth.recipe.load import read_toml
from sleuth.recipe.problems import Look, read_table
from sleuth.recipe.rewards import RewardRecipe, RewardTable
from sleuth.recipe.strict import Row, StrictModel

Part = TypeVar("Part", bound=StrictModel)


class JudgeFile(StrictModel):
    """A file that says who judges."""

    judge: JudgeTable
    """The judge."""


class RewardFile(StrictModel):
    """A file that says what is paid for."""

    reward: Annotated[Row[RewardTable], Field(min_length=1)]
    """The rewards; the score is their weighted sum."""


class TeacherFile(StrictModel):
    """A file that says who writes data."""

    teacher: TeacherRecipe
    """The model that writes data."""


def load_judge(path: Path, look: Look | None = None) -> JudgeRecipe:
    """The `[judge]` of a file, as a reward's `judge` may be. Raises a `SleuthError` with a line for each problem."""
    return _load(path, JudgeFile, look).judge


def load_rewards(path: Path, look: Look | None = None) -> tuple[RewardRecipe, ...]:
    """The `[[reward]]` tables of a file, as a stage's may be. Raises a `SleuthError` with a line for each problem."""
    return _load(path, RewardFile, look).reward


def load_teacher(path: Path, look: Look | None = None) -> TeacherRecipe:
    """The `[teacher]` of a file. Raises a `SleuthError` with a line for each problem."""
    return _load(path, TeacherFile, look).teacher


def _load(path: Path, model: type[Part], look: Look | None) -> Part:
    draft = Draft(str(path))
    draft.lay(read_toml(path), str(path))
    return read_table(draft, model, look)
