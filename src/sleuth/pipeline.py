"""A recipe's stages in order: what is finished is skipped, the one that stopped resumes, checkpoints are handed on."""

from __future__ import annotations

from pathlib import Path

from sleuth.build import search_setting
from sleuth.data.questions import select_tasks
from sleuth.recipe import Recipe
from sleuth.recipe.stages import EvaluateRecipe, GrpoRecipe, SupervisedRecipe
from sleuth.render import load_tokenizer
from sleuth.runs.run_folder import RunFolder
from sleuth.stages.evaluate import run_evaluate
from sleuth.stages.grpo import run_grpo
from sleuth.stages.stage_run import StageRun
from sleuth.stages.supervised import run_supervised
from sleuth.types import SleuthError


def run_recipe(recipe: Recipe, folder: RunFolder) -> Path:
    """Run every stage; the last checkpoint (or the recipe's model, if nothing trained)."""
    require_inputs(recipe)
    model, first_step = recipe.model, 0
    for index, stage in enumerate(recipe.stage):
        run = StageRun(recipe=recipe, index=index, folder=folder, model=model, first_step=first_step)
        match stage:
            case SupervisedRecipe():
                model = str(run_supervised(stage, run))
            case GrpoRecipe():
                model = str(run_grpo(stage, run))
            case EvaluateRecipe():
                run_evaluate(stage, run)
        if not isinstance(stage, EvaluateRecipe):
            first_step += stage.steps
    return Path(model)


def require_inputs(recipe: Recipe) -> None:
    """Read all that the stages will need, so that a missing file stops the run before its first step, not in its third
    hour. Raises a one-line `SleuthError` that names the stage."""
    tokenizer = load_tokenizer(recipe.model) if recipe.model else None
    for index, stage in enumerate(recipe.stage):
        if isinstance(stage, SupervisedRecipe):
            continue
        try:
            tasks = select_tasks(stage.data)
            if stage.env is not None:
                search_setting(stage.env, tokenizer, tasks)
        except SleuthError as error:
            raise SleuthError(f"stage.{index} ({stage.name}): {error}") from None
