"""The format reward: keeps structure that no other reward depends on, such as closing thought tags."""

from __future__ import annotations

import re
from functools import lru_cache

from sleuth import family
from sleuth.answers.answer import opened_answer
from sleuth.dialect import Dialect
from sleuth.types import Episode


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
