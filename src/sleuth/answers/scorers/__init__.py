"""Answer scorers: the strict one and those of published systems, by name."""

from sleuth.answers.scorers.published import (
    RESEARCH,
    SEARCH_R1,
    SEARCH_R1_FORMAT,
    SKYRL,
    SLIME,
    TINKER,
    VERL,
)
from sleuth.answers.scorers.scorer import STRICT, Scorer, View
from sleuth.types import SleuthError

SCORERS: dict[str, Scorer] = {
    scorer.name: scorer for scorer in (STRICT, SEARCH_R1, SEARCH_R1_FORMAT, SLIME, VERL, SKYRL, RESEARCH, TINKER)
}


def scorer_of(name: str) -> Scorer:
    """The scorer of that name; raises `SleuthError` for an unknown one."""
    if name not in SCORERS:
        raise SleuthError(f"scorer = {name!r}: unknown; the scorers are {', '.join(SCORERS)}")
    return SCORERS[name]


__all__ = ["SCORERS", "Scorer", "View", "scorer_of"]
