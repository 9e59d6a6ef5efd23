"""Rewards that a user's function computes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import Caller, finite_number, plain, shown_value
from sleuth.own.functions import UserCodeError, UserFunction, first_parameter, load_function, require_arguments
from sleuth.recipe.rewards import FunctionFields
from sleuth.types import Episode, Group, Score, failed_score

EPISODE, GROUP = "episode", "group"
PART_PREFIX = "score_"
"""Before the function's name, that is the part of the score: `score_brevity`. Its own parts follow a slash,
`score_brevity/turns`, so that no name of a user is that of a figure of ours or of another function."""
EXAMPLE = "def {name}(episode: Episode) -> float | None, or {name}(group: Group) -> list[float | None]"


class FunctionReward:
    """The score that a user's function gives an episode, or all episodes of a group; also as the part `score_NAME`. The
    parts of a `Score` that it returns are `score_NAME/PART`, and its note is that of NAME among the `notes`.

    The function's first parameter decides: an `Episode`, or anything called `episode`, gets one episode after the
    other; a `Group`, or anything called `group`, gets the group and returns a list. A score is a number, a `Score`, or
    None if it is missing; a part is a number or None. The score is missing too, with file and line in its note, if the
    function raises, takes longer than `seconds` or returns anything else, and if the episode failed. The constructor
    raises UserCodeError for a function that cannot be called like this with the `parameters`.
    """

    def __init__(self, function: UserFunction, parameters: Mapping[str, Any], *, seconds: float) -> None:
        self.function = function
        self.parameters = dict(parameters)
        self.takes_group = require_reward(function, parameters)
        self.part = PART_PREFIX + function.short_name
        self.call = Caller(function, seconds=seconds)

    async def __call__(self, group: Group) -> list[Score]:
        try:
            return await self._scores(group) if self.takes_group else await self._scores_one_by_one(group)
        except UserCodeError as error:
            return [self._missing(str(error)) for _ in group.episodes]

    async def score_or_raise(self, group: Group) -> list[Score]:
        """The scores; raises the UserCodeError that would make one of them missing."""
        if self.takes_group:
            return await self._scores(group)
        return [await self._score(episode) for episode in group.episodes]

    async def _scores(self, group: Group) -> list[Score]:
        found = plain(await self.call(group, **self.parameters))
        count = len(group.episodes)
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != count:
            raise self.function.error(f"returned {shown_value(found)}; expected a list of {count} numbers")
        scores = map(self._checked, found)
        return [failed_score(episode) or score for episode, score in zip(group.episodes, scores, strict=True)]

    async def _scores_one_by_one(self, group: Group) -> list[Score]:
        async def score(episode: Episode) -> Score:
            try:
                return await self._score(episode)
            except UserCodeError as error:
                return self._missing(str(error))

        return await asyncio.gather(*map(score, group.episodes))

    async def _score(self, episode: Episode) -> Score:
        failed = failed_score(episode)
        return failed or self._checked(await self.call(episode, **self.parameters))

    def _missing(self, why: str) -> Score:
        return Score(value=None, note=why, notes={self.function.short_name: why})

    def _checked(self, found: Any) -> Score:
        found = plain(found)
        score = found if isinstance(found, Score) else Score(value=found)
        parts, value = checked_parts(self.function, score.parts, self.part), finite_number(score.value)
        note = replace_surrogates(str(score.note or ""))
        if score.value is None:
            return replace(self._missing(note or f"{self.function.short_name} returned None"), parts=parts)
        if value is None:
            raise self.function.error(
                f"returned {shown_value(score.value)}; expected a finite number, or None if it is missing"
            )
        notes = {self.function.short_name: note} if note else {}
        return Score(value=value, parts={self.part: value, **parts}, notes=notes, credits=score.credits)


def function_reward_of(reward: FunctionFields) -> FunctionReward:
    """The reward that a user's function computes. Raises UserCodeError if there is no such function."""
    return FunctionReward(load_function(reward.function, reward.files), reward.parameters, seconds=reward.seconds)


def require_reward(function: UserFunction, parameters: Mapping[str, Any]) -> bool:
    """Whether the function takes a whole group. Raises UserCodeError if it takes neither a group nor an episode, or not
    these parameters."""
    example = EXAMPLE.format(name=function.short_name)
    require_arguments(function, 1, parameters, example)
    first = first_parameter(function)
    known = {EPISODE: False, GROUP: True, Episode: False, Group: True, "Episode": False, "Group": True}
    for sign in (first.annotation, first.name) if first is not None else ():
        if isinstance(sign, str | type) and sign in known:
            return known[sign]
    raise function.error(f"takes neither an episode nor a group; expected {example}")


def checked_parts(function: UserFunction, parts: Any, prefix: str, what: str = "part") -> dict[str, float]:
    """The numbers that a user's function returned by name, those that are there, as `PREFIX/NAME`: under names of its
    own. Raises UserCodeError for anything else."""
    if not isinstance(parts, Mapping):
        raise function.error(f"returned {what}s = {shown_value(parts)}; expected numbers by name")
    found = {}
    for name, part in parts.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise function.error(f"returned a {what} called {shown_value(name)}; expected a name in one line")
        if part is None:
            continue
        if (number := finite_number(part)) is None:
            raise function.error(f"returned the {what} {name} = {shown_value(part)}; expected a finite number")
        found[f"{prefix}/{name}"] = number
    return found
