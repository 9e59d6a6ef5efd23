"""Prompts, results and thoughts in the tiny model's training text, in the tags of the `sleuth` dialect."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sleuth.dialect import DIALECTS
from sleuth.types import Piece
from sleuth.world.library import Article
from sleuth.world.questions import Hop
from sleuth.world.text import Row
from sleuth.world.wording import RELATIONS

DIALECT = DIALECTS["sleuth"]
PROMPT = "Question: {question}\n"


def goal(hop: Hop) -> str:
    """What a hop looks up, as the start of a thought: ` author of The Silent Harbor`."""
    return " " + RELATIONS[hop.relation].format(subject=hop.subject)


def results(shown: Sequence[Article]) -> str:
    """Passages in the environment's format."""
    lines = [DIALECT.passage.format(rank=rank, title=a.title, text=a.text) + "\n" for rank, a in enumerate(shown, 1)]
    return DIALECT.before_results + DIALECT.information.around("\n" + "".join(lines)) + DIALECT.after_results


def reading_row(shown: Sequence[Article], rng: random.Random) -> Row:
    """Passages as results, then each of their facts as a thought, in random order; only the values are `teacher`."""
    row = [Piece(text=results(shown), author="source")]
    known = [
        Hop(relation=relation, subject=article.about, value=value)
        for article in shown
        for relation, value in article.facts.items()
    ]
    for hop in rng.sample(known, len(known)):
        row.append(Piece(text=f"{DIALECT.think.open}{goal(hop)} is", author="source"))
        row.append(Piece(text=f" {hop.value}", author="teacher"))
        row.append(Piece(text=DIALECT.think.close, author="source"))
    return row
