"""The structure of a whole transcript, so that what nothing else pays for, such as a closing thought tag, stays."""

from __future__ import annotations

import re
from functools import lru_cache

from sleuth.dialects import Dialect
from sleuth.dialects.refine import ANSWER_ONLY
from sleuth.types import Episode


def well_formed(episode: Episode, dialect: Dialect) -> float:
    """1 where every turn is one closed thought and then one action, with nothing but white space around them: searches
    first, an answer last.

    Read off the policy's turns alone: neither a passage nor a cut can spoil a structure, or lend one. A turn whose
    search the environment opened has no thought, nor has one of a refiner that is to answer only.
    """
    segments = [segment for trajectory in episode.trajectories for segment in trajectory.segments]
    first = next((at for at, segment in enumerate(segments) if segment.author == "policy"), len(segments))
    turns = [segment.text for segment in segments if segment.author == "policy"]
    search, answer, query = _forms(dialect)
    opened = "".join(segment.text for segment in segments[:first]).endswith(dialect.search.open)
    forms = [query if opened else search, *[search] * (len(turns) - 2), answer][-len(turns) :]
    sound = episode.trajectory.stop == "answered" and len(turns) > opened
    return float(sound and all(form.fullmatch(turn) for form, turn in zip(forms, turns, strict=True)))


@lru_cache
def _forms(dialect: Dialect) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A turn that searches, one that answers, and one that begins inside a query."""
    no_tag = f"(?:(?!{'|'.join(map(re.escape, dialect.tags))}).)*"

    def element(tags_open: str, tags_close: str) -> str:
        return rf"{re.escape(tags_open)}{no_tag}{re.escape(tags_close)}\s*"

    thinks = dialect.name != ANSWER_ONLY.name
    thought = rf"\s*{element(dialect.think.open, dialect.think.close) if thinks else ''}"
    search, answer = (thought + element(tags.open, tags.close) for tags in (dialect.search, dialect.answer))
    query = no_tag + re.escape(dialect.search.close) + r"\s*"
    return re.compile(search, re.DOTALL), re.compile(answer, re.DOTALL), re.compile(query, re.DOTALL)
