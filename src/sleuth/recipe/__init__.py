"""Recipes: TOML files that describe runs, as strict pydantic models. Never imports torch."""

from sleuth.recipe.data import AnsweredRowsRecipe, QuestionsRecipe, ReadingRecipe, WorldTextRecipe
from sleuth.recipe.envs import RefineEnvRecipe, SearchEnvRecipe, ThoughtEnvRecipe, ToolEnvRecipe
from sleuth.recipe.evaluation import EvaluateRecipe, GateRecipe, ProbeRecipe, ReasonRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.load import load_recipe
from sleuth.recipe.recipe import Recipe
from sleuth.recipe.stage import StageFields
from sleuth.recipe.supervised import SupervisedRecipe, WarmStartRecipe
from sleuth.recipe.text import HeldOutThoughtsRecipe, PlacesRecipe, TextRecipe, ThoughtTextRecipe
from sleuth.recipe.toml_writer import dump_toml
from sleuth.recipe.training import InitRecipe, TrainingRecipe
from sleuth.think.annotate_table import AnnotateRecipe
from sleuth.think.preference_tables import OnlineDpoRecipe, WinRateRecipe

__all__ = [
    "AnnotateRecipe",
    "AnsweredRowsRecipe",
    "EvaluateRecipe",
    "GateRecipe",
    "GrpoRecipe",
    "HeldOutThoughtsRecipe",
    "InitRecipe",
    "OnlineDpoRecipe",
    "PlacesRecipe",
    "ProbeRecipe",
    "QuestionsRecipe",
    "ReadingRecipe",
    "ReasonRecipe",
    "Recipe",
    "RefineEnvRecipe",
    "SearchEnvRecipe",
    "StageFields",
    "SupervisedRecipe",
    "TextRecipe",
    "ThoughtEnvRecipe",
    "ThoughtTextRecipe",
    "ToolEnvRecipe",
    "TrainingRecipe",
    "WarmStartRecipe",
    "WinRateRecipe",
    "WorldTextRecipe",
    "dump_toml",
    "load_recipe",
]
