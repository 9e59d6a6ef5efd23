"""Files that hold one part of a recipe: `[judge]` or `[[reward]]`; or `[teacher]`, who writes data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from sleuth.recipe.draft import Draft
from sleuth.recipe.judges import JudgeRecipe, JudgeTable, TeacherRecipe
from sleuth.recipe.load import read_toml
from sleuth.recipe.problems import describe
from sleuth.recipe.rewards import RewardRecipe, RewardTable
from sleuth.recipe.strict import Row, StrictModel
from sleuth.types import SleuthError

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


def load_judge(path: Path) -> JudgeRecipe:
    """The `[judge]` of a file, as a reward's `judge` may be. Raises a one-line `SleuthError`."""
    return _load(path, JudgeFile).judge


def load_rewards(path: Path) -> tuple[RewardRecipe, ...]:
    """The `[[reward]]` tables of a file, as a stage's may be. Raises a one-line `SleuthError`."""
    return _load(path, RewardFile).reward


def load_teacher(path: Path) -> TeacherRecipe:
    """The `[teacher]` of a file. Raises a one-line `SleuthError`."""
    return _load(path, TeacherFile).teacher


def _load(path: Path, model: type[Part]) -> Part:
    draft = Draft(str(path))
    draft.lay(read_toml(path), str(path))
    try:
        return model.model_validate(draft.table)
    except ValidationError as error:
        raise SleuthError(describe(error, draft, model)) from None
