"""A run as strict models read from TOML. Never imports torch."""

from sleuth.recipe.data import AnsweredRowsRecipe, ExaminationRecipe, QuestionsRecipe, WorldTextRecipe
from sleuth.recipe.envs import RefineEnvRecipe, SearchEnvRecipe
from sleuth.recipe.load import load_recipe
from sleuth.recipe.recipe import Recipe, ResolvedFrom, StageRecipe
from sleuth.recipe.rewards import AnswerRewardRecipe, CitationRecipe, RubricRecipe
from sleuth.recipe.stages import (
    EvaluateRecipe,
    GrpoRecipe,
    HintRecipe,
    LossRecipe,
    SamplingRecipe,
    SupervisedRecipe,
    WarmStartRecipe,
)
from sleuth.recipe.toml_writer import dump_toml
from sleuth.recipe.training import InitRecipe, TrainingRecipe

__all__ = [
    "AnswerRewardRecipe",
    "AnsweredRowsRecipe",
    "CitationRecipe",
    "EvaluateRecipe",
    "ExaminationRecipe",
    "GrpoRecipe",
    "HintRecipe",
    "InitRecipe",
    "LossRecipe",
    "QuestionsRecipe",
    "Recipe",
    "RefineEnvRecipe",
    "ResolvedFrom",
    "RubricRecipe",
    "SamplingRecipe",
    "SearchEnvRecipe",
    "StageRecipe",
    "SupervisedRecipe",
    "TrainingRecipe",
    "WarmStartRecipe",
    "WorldTextRecipe",
    "dump_toml",
    "load_recipe",
]
