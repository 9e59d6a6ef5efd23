"""How answers are read and paid for, ours and as published systems do it: one small file a family."""

from sleuth.rewards.scorers.research import RESEARCH
from sleuth.rewards.scorers.scorer import STRICT, Scorer, View
from sleuth.rewards.scorers.search_r1 import SEARCH_R1, SEARCH_R1_FORMAT, SKYRL, SLIME, VERL
from sleuth.rewards.scorers.tinker import TINKER
from sleuth.types import SleuthError

SCORERS: dict[str, Scorer] = {
    scorer.name: scorer for scorer in (STRICT, SEARCH_R1, SEARCH_R1_FORMAT, SLIME, VERL, SKYRL, RESEARCH, TINKER)
}


def scorer_of(name: str) -> Scorer:
    """A scorer by its name."""
    if name not in SCORERS:
        raise SleuthError(f"scorer = {name!r}: there is no such scorer; there are {', '.join(SCORERS)}")
    return SCORERS[name]


__all__ = ["SCORERS", "Scorer", "View", "scorer_of"]
