"""Recipes: TOML files that describe runs, as strict pydantic models. Never imports torch."""

from sleuth.recipe.annotation import AnnotateRecipe
from sleuth.recipe.data import AnsweredRowsRecipe, EvalQuestionsRecipe, QuestionsRecipe, WorldTextRecipe
from sleuth.recipe.envs import (
    FunctionEnvRecipe,
    RefineEnvRecipe,
    SearchEnvRecipe,
    ThoughtEnvRecipe,
    ToolEnvRecipe,
    ToolServerRecipe,
)
from sleuth.recipe.evaluation import EvaluateRecipe, GateRecipe, ProbeRecipe, ReasonRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.load import load_recipe
from sleuth.recipe.loss import LossRecipe, SamplingRecipe
from sleuth.recipe.preference import OnlineDpoRecipe, WinRateRecipe
from sleuth.recipe.recipe import Recipe, ResolvedFrom, StageRecipe
from sleuth.recipe.rewards import (
    AnswerRewardRecipe,
    CitationRecipe,
    FunctionRewardRecipe,
    GainRecipe,
    RubricRecipe,
    SuffixRecipe,
)
from sleuth.recipe.supervised import HintRecipe, SupervisedRecipe, WarmStartRecipe
from sleuth.recipe.text import DocumentsRecipe, HeldOutThoughtsRecipe, PlacesRecipe, TextRecipe, ThoughtTextRecipe
from sleuth.recipe.toml_writer import dump_toml
from sleuth.recipe.training import InitRecipe, TrainingRecipe

__all__ = [
    "AnnotateRecipe",
    "AnswerRewardRecipe",
    "AnsweredRowsRecipe",
    "CitationRecipe",
    "DocumentsRecipe",
    "EvalQuestionsRecipe",
    "EvaluateRecipe",
    "FunctionEnvRecipe",
    "FunctionRewardRecipe",
    "GainRecipe",
    "GateRecipe",
    "GrpoRecipe",
    "HeldOutThoughtsRecipe",
    "HintRecipe",
    "InitRecipe",
    "LossRecipe",
    "OnlineDpoRecipe",
    "PlacesRecipe",
    "ProbeRecipe",
    "QuestionsRecipe",
    "ReasonRecipe",
    "Recipe",
    "RefineEnvRecipe",
    "ResolvedFrom",
    "RubricRecipe",
    "SamplingRecipe",
    "SearchEnvRecipe",
    "StageRecipe",
    "SuffixRecipe",
    "SupervisedRecipe",
    "TextRecipe",
    "ThoughtEnvRecipe",
    "ThoughtTextRecipe",
    "ToolEnvRecipe",
    "ToolServerRecipe",
    "TrainingRecipe",
    "WarmStartRecipe",
    "WinRateRecipe",
    "WorldTextRecipe",
    "dump_toml",
    "load_recipe",
]
