"""The answer, read strictly and, where a recipe asks for it, as a published scorer reads it too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

from sleuth.dialects import Dialect
from sleuth.rewards import match
from sleuth.rewards.match import exact_match
from sleuth.rewards.match import normalise as normalise  # where it has always been found
from sleuth.rewards.scorers import Scorer
from sleuth.rewards.scorers.scorer import STRICT, Extracted, extract, transcript_of
from sleuth.rewards.supplied import stands_in_results
from sleuth.types import Episode, Group, Score

Outcome = Literal["correct", "wrong", "no_answer", "malformed"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)


def given_answer(episode: Episode, dialect: Dialect) -> tuple[str | None, Outcome]:
    """The answer that the policy gave, by its own words alone, and what became of it.

    What the environment did not take for an answer is none, whatever tags it holds: it counts as malformed.
    """
    turns = [segment.text for segment in episode.trajectory.segments if segment.author == "policy"]
    found = _inside(extract(turns, dialect.answer.open, dialect.answer.close), dialect.answer_inner)
    if found.answer is None:
        return None, found.fault or "no_answer"
    if episode.trajectory.stop != "answered":
        return None, "malformed"
    return found.answer, "correct" if exact_match(found.answer, episode.task.golden_answers) else "wrong"


def _inside(found: Extracted, inner: str | None) -> Extracted:
    """The answer itself in dialects that box it: `inner` is an expression whose group `text` is where it stands within
    its tags. Outside of it there is none, and what is there is malformed."""
    if inner is None or found.answer is None:
        return found
    match = re.search(inner, found.answer)
    if match is None or not match["text"].strip():
        return Extracted(answer=None, fault="malformed")
    return Extracted(answer=match["text"].strip())


class AnswerReward:
    """What `scorer` says; missing when the episode failed through no fault of the policy, or cannot be read.

    Whoever is paid by, strict exact match is told beside it. Parts: `em`, one of `correct`, `wrong`, `no_answer`,
    `malformed` at 1 (the note names it), and `score_NAME` of a scorer other than `strict`. `end_token` is the id of the
    end-of-text token, which some scorers look for.
    """

    def __init__(self, dialect: Dialect, *, scorer: Scorer = STRICT, end_token: int | None = None) -> None:
        self.dialect = dialect
        self.scorer = scorer
        self.end_token = end_token

    async def __call__(self, group: Group) -> list[Score]:
        return [self._score(episode) for episode in group.episodes]

    def _score(self, episode: Episode) -> Score:
        if episode.trajectory.stop == "failed":
            return FAILED
        _, outcome = given_answer(episode, self.dialect)
        em = float(outcome == "correct")
        parts = {"em": em, outcome: 1.0}
        if self.scorer.name == STRICT.name:
            return Score(value=em, parts=parts, note=outcome)
        transcript = transcript_of(episode.trajectory, self.end_token)
        value = self.scorer.of(transcript, episode.task.golden_answers)
        if value is None:
            return Score(value=None, parts=parts, note=f"the scorer {self.scorer.name} cannot read the episode")
        return Score(value=value, parts=parts | {f"score_{self.scorer.name}": value}, note=outcome)


FAILED = Score(value=None, note="retriever failed")
"""Of an episode that ended through no fault of the policy."""


class EpisodeReward:
    """`measure(episode, dialect)`, a number between 0 and 1, as the part `name`; missing where the retriever failed."""

    def __init__(self, name: str, measure: Callable[[Episode, Dialect], float], dialect: Dialect) -> None:
        self.name = name
        self.measure = measure
        self.dialect = dialect

    async def __call__(self, group: Group) -> list[Score]:
        return [self._score(episode) for episode in group.episodes]

    def _score(self, episode: Episode) -> Score:
        if episode.trajectory.stop == "failed":
            return FAILED
        value = self.measure(episode, self.dialect)
        return Score(value=value, parts={self.name: value})


def answer_from_evidence(episode: Episode, dialect: Dialect) -> float:
    """1 where the given answer, right or wrong, stands in a passage that the policy was shown."""
    answer, _ = given_answer(episode, dialect)
    return float(answer is not None and stands_in_results(answer, episode.trajectory))


def evidence_in_results(episode: Episode, dialect: Dialect) -> float:
    """1 where a golden answer stands in a passage that the policy was shown, whatever it made of it."""
    return float(any(stands_in_results(golden, episode.trajectory) for golden in episode.task.golden_answers))


def searched(episode: Episode, dialect: Dialect) -> float:
    """1 where the environment answered at least one search."""
    return float(episode.trajectory.searches > 0)


def sub_match(episode: Episode, dialect: Dialect) -> float:
    """1 where `match.sub_match` finds a golden answer in the one that the policy gave. A policy that is paid for
    nothing else learns to list everything."""
    answer, _ = given_answer(episode, dialect)
    return float(answer is not None and match.sub_match(answer, episode.task.golden_answers))


def token_f1(episode: Episode, dialect: Dialect) -> float:
    """`match.token_f1` of the answer that the policy gave; 0 where it gave none."""
    answer, _ = given_answer(episode, dialect)
    return 0.0 if answer is None else match.token_f1(answer, episode.task.golden_answers)
