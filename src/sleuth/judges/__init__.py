"""Who decides what supports what, and what is better. A judge that could not decide says so; it never says zero."""

from sleuth.judges.lexical import LexicalJudge
from sleuth.types import Judge

JUDGES: dict[str, type[Judge]] = {"lexical": LexicalJudge}
"""Judges by the name that a recipe gives them."""

__all__ = ["JUDGES", "LexicalJudge"]
