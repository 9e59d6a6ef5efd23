"""A good answer made worse in ways that criteria worth their name should notice."""

from __future__ import annotations

import re
from collections.abc import Callable

VERB = re.compile(r"\b(is|are|was|were|has|had|can|could|will|would)\b(?! not)")


def another(answer: str, other: str) -> str:
    """What answers another question."""
    return other


def half(answer: str, other: str) -> str:
    """The first half of its words, so that something is missing."""
    words = answer.split()
    return " ".join(words[: len(words) // 2])


def denied(answer: str, other: str) -> str:
    """The opposite of each of its sentences that has an auxiliary verb."""
    return VERB.sub(r"\1 not", answer)


def numbers_changed(answer: str, other: str) -> str:
    """Every number is another one of as many digits; ids in tags stay."""
    parts = re.split(r"(<[^<>]*>)", answer)
    return "".join(part if part.startswith("<") else re.sub(r"\d", _next_digit, part) for part in parts)


def _next_digit(digit: re.Match[str]) -> str:
    return str((int(digit[0]) + 3) % 10)


WAYS: dict[str, Callable[[str, str], str]] = {
    "another": another,
    "half": half,
    "denied": denied,
    "numbers_changed": numbers_changed,
}
"""By name: of the good answer, and of one to another question."""


def spoiled(answer: str, other: str) -> dict[str, str]:
    """The answer in every way that changes it, and leaves a word of it."""
    made = {name: way(answer, other) for name, way in WAYS.items()}
    return {name: text for name, text in made.items() if text.strip() and text != answer}
