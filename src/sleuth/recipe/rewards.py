"""What is paid for: `[[stage.reward]]`."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from sleuth.recipe.strict import StrictModel


class AnswerRewardRecipe(StrictModel):
    """1 for a golden answer, 0 for another one."""

    kind: Literal["answer"]
    scorer: Literal["strict"] = "strict"
    """How the answer is read off the trajectory: "strict" reads policy-written text alone."""
    weight: PositiveFloat = 1.0
    """What the score is multiplied by before the rewards are summed."""
    shuffle: bool = False
    """Control arm: the scores are permuted within the step, so that they say nothing about their episodes."""


RewardRecipe = AnswerRewardRecipe
