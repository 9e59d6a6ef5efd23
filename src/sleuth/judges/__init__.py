"""Who decides what supports what, and what is better. A judge that could not decide says so; it never says zero."""

from sleuth.judges.lexical import LexicalJudge

__all__ = ["LexicalJudge"]
