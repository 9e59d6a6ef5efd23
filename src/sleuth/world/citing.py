"""What a tool returned, and lessons about it: which snippet a word is in, and what an honest refiner says of all that
it tells, with its source.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from sleuth.dialects.refine import ANSWER_ONLY
from sleuth.types import Piece
from sleuth.world.facts import World
from sleuth.world.library import Library
from sleuth.world.names import Split
from sleuth.world.questions import Hop, Question
from sleuth.world.thoughts import Row
from sleuth.world.tool_outputs import IDS, Fact, Snippet, ToolOutputs, as_text, cited, claim_of, fact_of, reasoning_of
from sleuth.world.wording import STALE, UNANSWERED

NAME = re.compile(r" (?!(?:As|Born|For|In|It|The)\b)(?:[A-Z]\w+|\d+)")
PLACES = 24
"""So many words are looked for in a tool output."""
ASKED = 6
"""So much is wanted of what a tool output tells."""
TAGS = ("<snippet id=", "</snippet>", ANSWER_ONLY.information.open, ANSWER_ONLY.information.close)
"""Tokens of their own in a tokenizer made for such rows."""


def words() -> Iterator[str]:
    """Texts whose words such rows use beside those of the rest of the world."""
    yield from (f" {text} " for text in (UNANSWERED, *STALE, "Reasoning: I need", "First I need what I find, then"))
    yield "The tool\nReasoning:\nI need\nFirst>"
    yield from (f"={id_}>" for id_ in IDS)


def placing_row(rng: random.Random, question: Question, world: World, split: Split) -> Row:
    """One tool output, and of many a word in it the snippet that it is in."""
    _, snippets = ToolOutputs(world, Library(world, rng), split, rng).returned(question)
    row = [Piece(text=ANSWER_ONLY.information.around(f"\n{as_text(snippets)}\n"), author="env")]
    for word, id_ in _places(rng, snippets):
        row.append(Piece(text=f"\n{word}<snippet id=", author="source"))
        row.append(Piece(text=id_, author="teacher"))
        row.append(Piece(text="></snippet>", author="source"))
    return row


def citing_row(rng: random.Random, question: Question, world: World, split: Split) -> Row:
    """One tool output, and what an honest refiner says of many a thing that one may want of it."""
    library = Library(world, rng)
    _, snippets = ToolOutputs(world, library, split, rng).returned(question)
    stated = {fact: snippet.id for snippet in snippets for fact in snippet.facts}
    row = [Piece(text=ANSWER_ONLY.information.around(f"\n{as_text(snippets)}\n"), author="env")]
    for hop in _wanted(rng, [*stated], library):
        told = fact_of(hop) in stated
        answer = cited(stated[fact_of(hop)], claim_of(fact_of(hop))) if told else UNANSWERED
        row.append(Piece(text=f"\nReasoning: {reasoning_of([hop])}\n{ANSWER_ONLY.answer.open}", author="source"))
        row.append(Piece(text=answer, author="teacher"))
        row.append(Piece(text=ANSWER_ONLY.answer.close, author="source"))
    return row


def _places(rng: random.Random, snippets: Sequence[Snippet]) -> list[tuple[str, str]]:
    """Names and values that one snippet alone holds, each with its id."""
    holders: dict[str, list[str]] = {}
    for snippet in snippets:
        for word in dict.fromkeys(NAME.findall(f" {snippet.text}")):
            holders.setdefault(word, []).append(snippet.id)
    unique = [(word, ids[0]) for word, ids in holders.items() if len(ids) == 1]
    return rng.sample(unique, min(PLACES, len(unique)))


def _wanted(rng: random.Random, told: list[Fact], library: Library) -> list[Hop]:
    """Some of what is told, and something of the same entities that is not."""
    known = [(subject, *fact) for subject in {about for about, _, _ in told} for fact in library[subject].items()]
    untold = sorted(set(known) - set(told))
    chosen = rng.sample(told, min(ASKED, len(told))) + rng.sample(untold, min(1, len(untold)))
    return [Hop(subject=s, relation=r, value=v) for s, r, v in rng.sample(chosen, len(chosen))]
