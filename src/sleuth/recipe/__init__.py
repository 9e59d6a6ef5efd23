"""Recipes: TOML files that describe runs, as strict pydantic models. Never imports torch."""

from sleuth.recipe.data import AnsweredRowsRecipe, QuestionsRecipe, TextRecipe, WorldTextRecipe
from sleuth.recipe.draft import dump_toml
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.load import load_recipe
from sleuth.recipe.recipe import Recipe
from sleuth.recipe.stage import EvaluateRecipe, StageFields
from sleuth.recipe.training import InitRecipe, SupervisedRecipe, TrainingRecipe

__all__ = [
    "AnsweredRowsRecipe",
    "EvaluateRecipe",
    "GrpoRecipe",
    "InitRecipe",
    "QuestionsRecipe",
    "Recipe",
    "StageFields",
    "SupervisedRecipe",
    "TextRecipe",
    "TrainingRecipe",
    "WorldTextRecipe",
    "dump_toml",
    "load_recipe",
]
