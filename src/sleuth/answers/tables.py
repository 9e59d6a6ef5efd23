"""The tables of `[[stage.reward]]` that no family of its own brings, and what is a well-formed episode."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

from sleuth import family
from sleuth.answers.answer import EpisodeReward, RewardOfEpisodes, answer_reward_of, opened_answer, token_f1
from sleuth.answers.function import FunctionReward, function_reward_of
from sleuth.answers.match import exact_match
from sleuth.answers.scorers import scorer_of
from sleuth.dialect import Dialect
from sleuth.recipe.envs import EpisodeKind
from sleuth.recipe.rewards import FunctionFields, Identify, RewardFields, RewardInputs, ScorerName
from sleuth.types import Episode, Reward, Score, StepFigure


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


def well_formed(episode: Episode, dialect: Dialect) -> float:
    """1 if every turn is one closed thought and one action with only white space around them, searches first and an
    answer last; else 0.

    Only the policy's turns count, so passages and truncation cannot change the result. A turn whose search or answer
    tag the environment opened has no thought, nor have the turns of a reader and of a refiner that only answers.
    """
    segments = [segment for trajectory in episode.trajectories for segment in trajectory.segments]
    first = next((index for index, segment in enumerate(segments) if segment.author == "policy"), len(segments))
    turns = [segment.text for segment in segments if segment.author == "policy"]
    search, answer, query, rest = _patterns(dialect)
    if opened_answer(episode.trajectory, dialect):
        return float(episode.trajectory.stop == "answered" and len(turns) == 1 and bool(rest.fullmatch(turns[0])))
    opened = "".join(segment.text for segment in segments[:first]).endswith(dialect.search.open)
    patterns = [query if opened else search, *[search] * (len(turns) - 2), answer][-len(turns) :]
    complete = episode.trajectory.stop == "answered" and len(turns) > opened
    return float(complete and all(pattern.fullmatch(turn) for pattern, turn in zip(patterns, turns, strict=True)))


@lru_cache
def _patterns(dialect: Dialect) -> tuple[re.Pattern[str], ...]:
    """Patterns of a turn that searches, one that answers, one that starts inside a query, and one that starts inside an
    answer."""
    no_tag = f"(?:(?!{'|'.join(map(re.escape, dialect.tags))}).)*"

    def element(tags_open: str, tags_close: str) -> str:
        return rf"{re.escape(tags_open)}{no_tag}{re.escape(tags_close)}\s*"

    thinks = dialect.name not in family.thoughtless()
    thought = rf"\s*{element(dialect.think.open, dialect.think.close) if thinks else ''}"
    search, answer = (thought + element(tags.open, tags.close) for tags in (dialect.search, dialect.answer))
    query, rest = (no_tag + re.escape(tags.close) + r"\s*" for tags in (dialect.search, dialect.answer))
    return tuple(re.compile(pattern, re.DOTALL) for pattern in (search, answer, query, rest))


class FormatRecipe(EpisodeRewardRecipe):
    """1 if every turn is one closed thought and one action, and the last action is the answer."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "format", "Every turn is one closed thought and one action.", "Well-formed", "share of episodes", top=1.0
        ),
    )
    needs_answers: ClassVar[bool] = False
    kind: Literal["format"]
    measure = staticmethod(well_formed)


class FunctionRewardRecipe(FunctionFields, RewardFields):
    """The number that a function of your own returns for an episode (docs/how-to/own_code.md)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner", "thought")
    needs_answers: ClassVar[bool] = False
    kind: Literal["python"]

    @property
    def highest(self) -> None:
        """Only its author knows."""

    def build(self, inputs: RewardInputs) -> FunctionReward:
        return function_reward_of(self)


class EnvironmentReward(RewardOfEpisodes):
    """The score that an environment or an agent of the user's gave; where it gave none, whether its last answer is
    a golden one. Missing where the environment's own is, and without golden answers to compare with."""

    def score(self, episode: Episode) -> Score:
        trajectory = episode.trajectory
        given, last = trajectory.score, trajectory.actions[-1:]
        if given is None and not episode.task.golden_answers:
            return Score(value=None, note=f"{NO_SCORE}, and question {episode.task.id!r} has no golden answers")
        if given is None:
            answers = [one.text for one in last if one.kind == "answer" and trajectory.stop == "answered"]
            given = Score(value=float(any(exact_match(one, episode.task.golden_answers) for one in answers)))
        if given.value is None:
            return replace(given, note=given.note or NO_SCORE)
        return Score(value=given.value, parts={"environment": given.value})


NO_SCORE = "the environment gave no score"


class EnvironmentRewardRecipe(RewardFields):
    """The score that an environment or an agent of your own gives; where it gives none, 1 for a golden answer
    (docs/how-to/own_code.md)."""

    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "environment",
            "The score that the environment or the agent gave, or 1 for a golden answer.",
            "Environment's score",
            "mean over the step's episodes",
        ),
    )
    needs_answers: ClassVar[bool] = False
    kind: Literal["environment"]

    @property
    def highest(self) -> None:
        """Only its author knows."""

    def build(self, inputs: RewardInputs) -> Reward:
        return EnvironmentReward()
