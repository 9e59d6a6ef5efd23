"""A file that says who judges: its table `[judge]` is what a reward's `judge` may be, such as `sleuth check judge FILE`
reads."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sleuth.recipe.draft import Draft
from sleuth.recipe.judges import JudgeRecipe, JudgeTable
from sleuth.recipe.load import read_toml
from sleuth.recipe.problems import describe
from sleuth.recipe.strict import StrictModel
from sleuth.types import SleuthError


class JudgeFile(StrictModel):
    """A file that says who judges."""

    judge: JudgeTable


def load_judge(path: Path) -> JudgeRecipe:
    """Read and check the `[judge]` of a file. Raises a one-line `SleuthError`."""
    draft = Draft(str(path))
    draft.lay(read_toml(path), str(path))
    try:
        return JudgeFile.model_validate(draft.table).judge
    except ValidationError as error:
        raise SleuthError(describe(error, draft, JudgeFile)) from None
