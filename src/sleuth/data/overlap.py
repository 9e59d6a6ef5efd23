"""Test questions that are also trained on: a figure measured on them says little."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from sleuth.types import Task


def question_overlap(train: Sequence[Task], test: Sequence[Task]) -> list[Task]:
    """The test tasks whose question is trained on in the same words, in their order."""
    trained = {folded(task.question) for task in train}
    return [task for task in test if folded(task.question) in trained]


def folded(question: str) -> str:
    """Compatible Unicode forms as one (NFKC), lower case, and every run of punctuation and white space as one space:
    `Who wrote “Well-Known”?` is `who wrote well known`. Symbols stay, so that `2+2` is not `2=2`."""
    lower = unicodedata.normalize("NFKC", question).lower()
    words = (" " if unicodedata.category(character).startswith("P") else character for character in lower)
    return " ".join("".join(words).split())
