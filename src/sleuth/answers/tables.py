"""The tables of `[[stage.reward]]` that no family of its own brings."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from sleuth.answers.answer import EpisodeReward, answer_reward_of, token_f1
from sleuth.answers.format import well_formed
from sleuth.answers.function import FunctionReward, function_reward_of
from sleuth.answers.scorers import scorer_of
from sleuth.dialect import Dialect
from sleuth.recipe.envs import EpisodeKind
from sleuth.recipe.rewards import FunctionFields, Identify, RewardFields, RewardInputs, ScorerName
from sleuth.types import Episode, Reward, StepFigure


class EpisodeRewardRecipe(RewardFields):
    """A reward that is a function of an episode."""

    @staticmethod
    @abstractmethod
    def measure(episode: Episode, dialect: Dialect) -> float:
        """The score, a number between 0 and 1."""

    def build(self, inputs: RewardInputs) -> Reward:
        return EpisodeReward(self.kind, self.measure, inputs.dialect)


class AnswerRewardRecipe(RewardFields):
    """1 for a golden answer and 0 otherwise, or the score of a published scorer."""

    compares_answers: ClassVar[bool] = True
    is_measured_alone: ClassVar[bool] = True
    kind: Literal["answer"]
    scorer: ScorerName = "strict"
    """How the answer is extracted from the trajectory: "strict" reads policy-written text alone; the others reproduce
    the scorer of that project, quirks included. Strict exact match is always logged too."""

    @property
    def answer_scorer(self) -> str:
        return self.scorer

    def build(self, inputs: RewardInputs) -> Reward:
        return answer_reward_of(self.scorer, inputs.dialect, inputs.tokenizer)

    def record(self, identify: Identify) -> dict[str, Any]:
        return {"scorer": self.scorer, "scorer_version": scorer_of(self.scorer).version}


class TokenF1Recipe(EpisodeRewardRecipe):
    """F1 of the words of the answer against those of a golden answer."""

    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "token_f1",
            "F1 of the words that the answer shares with a golden one.",
            "Token F1",
            "mean over the step's episodes",
            top=1.0,
        ),
    )
    compares_answers: ClassVar[bool] = True
    kind: Literal["token_f1"]
    measure = staticmethod(token_f1)


class FormatRecipe(EpisodeRewardRecipe):
    """1 if every turn is one closed thought and one action, and the last action is the answer."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "format", "Every turn is one closed thought and one action.", "Well-formed", "share of episodes", top=1.0
        ),
    )
    kind: Literal["format"]
    measure = staticmethod(well_formed)


class FunctionRewardRecipe(FunctionFields, RewardFields):
    """The number that a function of your own returns for an episode (docs/how-to/own_code.md)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner", "thought")
    kind: Literal["python"]

    @property
    def highest(self) -> None:
        """Only its author knows."""

    def build(self, inputs: RewardInputs) -> FunctionReward:
        return function_reward_of(self)
