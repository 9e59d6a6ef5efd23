"""The stage of a recipe that a verb does by itself, for a model that is named beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import ProbeRecipe, ReasonRecipe, Recipe, WinRateRecipe

Stage = TypeVar("Stage", bound="ProbeRecipe | ReasonRecipe | WinRateRecipe")


def read_stage(file: Path, kind: type[Stage], purpose: str) -> tuple[Recipe, Stage]:
    """A recipe, and the first stage of that kind in it. Raises SleuthError where it has none, or where what the stage
    names is not there; `purpose` says what the stage is wanted for, such as "probe as"."""
    from sleuth.plan.inputs import require_named
    from sleuth.recipe import load_recipe

    recipe = load_recipe(file)
    at, stage = next(((at, stage) for at, stage in enumerate(recipe.stage) if isinstance(stage, kind)), (0, None))
    if stage is None:
        [name] = get_args(kind.model_fields["kind"].annotation)
        raise SleuthError(f'{file}: has no stage of kind = "{name}" to {purpose}; add one')
    require_named(stage, str(file), ("stage", at))
    return recipe, stage
