"""The forms that the tiny model's text takes: prompt, results, plain thoughts. The `sleuth` dialect gives the tags."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sleuth.dialects import DIALECTS
from sleuth.types import Piece
from sleuth.world.library import Article
from sleuth.world.questions import Hop
from sleuth.world.wording import RELATIONS

DIALECT = DIALECTS["sleuth"]
PROMPT = "Question: {question}\n"

Row = list[Piece]
"""A row of training text: `teacher` pieces are learned in full, `source` pieces lightly, `env` pieces not at all."""


def goal(hop: Hop) -> str:
    """The plain name of a look-up, as a thought begins: ` author of The Silent Harbor`."""
    return " " + RELATIONS[hop.relation].format(subject=hop.subject)


def results(shown: Sequence[Article]) -> str:
    """Passages as the environment shows them."""
    lines = [DIALECT.passage.format(rank=rank, title=a.title, text=a.text) + "\n" for rank, a in enumerate(shown, 1)]
    return DIALECT.before_results + DIALECT.information.around("\n" + "".join(lines)) + DIALECT.after_results


def read_aloud(shown: Sequence[Article], rng: random.Random) -> Row:
    """Passages as results, then every fact they state as a finished thought; the values are what is learned."""
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
