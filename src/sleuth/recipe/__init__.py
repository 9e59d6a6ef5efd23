"""Recipes: TOML files that describe runs, as strict pydantic models. Never imports torch."""

from sleuth.recipe.data import AnsweredRowsRecipe, QuestionsRecipe, WorldTextRecipe
from sleuth.recipe.evaluation import EvaluateRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.load import load_recipe
from sleuth.recipe.recipe import Recipe
from sleuth.recipe.stage import StageFields
from sleuth.recipe.supervised import SupervisedRecipe
from sleuth.recipe.text import TextRecipe
from sleuth.recipe.toml_writer import dump_toml
from sleuth.recipe.training import InitRecipe, TrainingRecipe

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
