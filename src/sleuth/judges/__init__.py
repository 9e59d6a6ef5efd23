"""Judges: verdicts on claims, answers and pairs. A verdict that could not be had is missing, never zero."""

from sleuth.judges.lexical import LexicalJudge

__all__ = ["LexicalJudge"]
