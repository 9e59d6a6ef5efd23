"""`kind = "evaluate"`: questions that are asked and counted."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from sleuth.recipe.data import EvalQuestionsRecipe
from sleuth.recipe.envs import EnvRecipe
from sleuth.recipe.strict import Name, StrictModel


class EvaluateRecipe(StrictModel):
    """Questions answered by the model as it stands; written to `eval/NAME.json`, and of a suite, each set
    to `eval/NAME@SET.json` and their mean to `eval/NAME.json`."""

    kind: Literal["evaluate"]
    name: Name
    """The file's name, such as "base" or "trained"."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    context: PositiveInt | None = None
    """Longest episode in tokens; absent: that of the nearest `grpo` stage."""
    data: EvalQuestionsRecipe
    """The questions to ask."""
    forced_search_arm: bool = False
    """Ask once more with the first action replaced by an opening search tag, for `eval/NAME_forced.json`: what a
    trained model gains over that is more than the habit of searching."""
    env: EnvRecipe | None = None
    """Absent: that of the nearest `grpo` stage, so that what is measured is what was trained."""
