"""What a tool returned, and lessons about it: which snippet a word is in, and what an honest refiner says of all that
it tells, with its source.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from sleuth.dialects.refine import ANSWER_ONLY, REFINERS
from sleuth.types import Piece
from sleuth.world.facts import World
from sleuth.world.library import Article, Library
from sleuth.world.names import Split
from sleuth.world.questions import Facts, Hop, Question
from sleuth.world.thoughts import Row, goal
from sleuth.world.tool_outputs import (
    IDS,
    Fact,
    Snippet,
    ToolOutputs,
    as_text,
    cited,
    claim_of,
    fact_of,
    reasoning_of,
    titled,
)
from sleuth.world.wording import STALE, UNANSWERED

NAME = re.compile(r" (?!(?:As|Born|For|In|It|The)\b)(?:[A-Z]\w+|\d+)")
THINKING = REFINERS["thinking"]
NOWHERE = " not in the tool output"
"""What a thought says of that which no snippet tells."""
PLACES = 24
"""So many words are looked for in a tool output."""
STRANGERS = 4
"""So many are asked about of whom a tool output tells nothing, in rows that are about that."""
ALIKE = (3, 6)
"""The fewest and the most snippets about namesakes."""
ASKED, UNTOLD, CHAINS = 3, 2, 2
"""So much is wanted of what a tool output tells, of what it does not, and in two hops."""
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


def citing_row(rng: random.Random, question: Question, world: World, split: Split, *, strangers: int = 0) -> Row:
    """One tool output, and what an honest refiner thinks and says of many a thing that one may want of it; also of so
    many `strangers`, whom nothing in it is about."""
    library = Library(world, rng)
    _, snippets = ToolOutputs(world, library, split, rng, unanswerable=0.5).returned(question)
    stated = {fact: snippet.id for snippet in snippets for fact in snippet.facts}
    row = [Piece(text=THINKING.information.around(f"\n{as_text(snippets)}\n"), author="env")]
    wanted = _wanted(rng, question.hops, [*stated], library)
    names = [*world.people, *world.works, *world.firms]
    for stranger in _unheard_of(rng, [*stated], {name: library[name] for name in names}, strangers):
        wanted.insert(rng.randint(0, len(wanted)), stranger)
    for hops in wanted:
        row.append(Piece(text=f"\nReasoning: {reasoning_of(hops)}{THINKING.think.open}", author="source"))
        for hop in hops:
            row.append(Piece(text=f"{goal(hop)} is", author="source"))
            row.append(Piece(text=found(hop, stated.get(fact_of(hop))), author="teacher"))
            if fact_of(hop) not in stated:
                break
        row.append(Piece(text=f"{THINKING.think.close}{THINKING.answer.open}", author="source"))
        row.append(Piece(text=said(hops, stated), author="teacher"))
        row.append(Piece(text=THINKING.answer.close, author="source"))
    return row


def namesakes_row(rng: random.Random, world: World) -> Row:
    """Snippets of one kind about entities that share words of their names, and what each tells of its own."""
    by_kind: dict[tuple[str, ...], list[Article]] = {}
    for article in Library(world, rng).articles:
        if article.about not in world.towns and article.facts:
            by_kind.setdefault(tuple(article.facts), []).append(article)
    alike = rng.choice([*by_kind.values()])
    shown = rng.sample(alike, min(rng.randint(*ALIKE), len(alike)))
    ids = rng.sample(IDS, len(shown))
    snippets = [
        Snippet(id=id_, text=titled(article.title, article.text), facts=())
        for id_, article in zip(ids, shown, strict=True)
    ]
    row = [Piece(text=THINKING.information.around(f"\n{as_text(snippets)}\n"), author="env")]
    told = [
        (Hop(relation=relation, subject=article.about, value=value), id_)
        for id_, article in zip(ids, shown, strict=True)
        for relation, value in article.facts.items()
    ]
    for hop, id_ in rng.sample(told, len(told)):
        row.append(Piece(text=f"\n{THINKING.think.open}{goal(hop)} is", author="source"))
        row.append(Piece(text=found(hop, id_), author="teacher"))
        row.append(Piece(text=THINKING.think.close, author="source"))
    return row


def found(hop: Hop, id_: str | None) -> str:
    """How a thought ends that began with what is looked for: what it is and in which snippet, or that it is in none."""
    return f" {hop.value} [{id_}]" if id_ else NOWHERE


def said(hops: Sequence[Hop], stated: Mapping[Fact, str]) -> str:
    """The answer of an honest refiner, between its tags."""
    if any(fact_of(hop) not in stated for hop in hops):
        return UNANSWERED
    return " ".join(cited(stated[fact_of(hop)], claim_of(fact_of(hop))) for hop in hops)


def _places(rng: random.Random, snippets: Sequence[Snippet]) -> list[tuple[str, str]]:
    """Names and values that one snippet alone holds, each with its id."""
    holders: dict[str, list[str]] = {}
    for snippet in snippets:
        for word in dict.fromkeys(NAME.findall(f" {snippet.text}")):
            holders.setdefault(word, []).append(snippet.id)
    unique = [(word, ids[0]) for word, ids in holders.items() if len(ids) == 1]
    return rng.sample(unique, min(PLACES, len(unique)))


def _wanted(rng: random.Random, asked: Sequence[Hop], told: list[Fact], library: Library) -> list[Sequence[Hop]]:
    """What the tool was asked for, some of what it tells beside it, some of that in two hops, and something of the
    same entities that it does not tell."""
    known = sorted((subject, *fact) for subject in {about for about, _, _ in told} for fact in library[subject].items())
    untold = [fact for fact in known if fact not in told]
    chosen = rng.sample(told, min(ASKED, len(told))) + rng.sample(untold, min(UNTOLD, len(untold)))
    chains = [(first, then) for first in told for then in known if first[2] == then[0]]
    wanted = [asked, *([_hop(fact)] for fact in chosen)]
    wanted += [[_hop(first), _hop(then)] for first, then in rng.sample(chains, min(CHAINS, len(chains)))]
    return rng.sample(wanted, len(wanted))


def _unheard_of(rng: random.Random, told: list[Fact], known: Facts, count: int) -> list[Sequence[Hop]]:
    """A fact each of so many entities of whom nothing is told."""
    heard_of = {about for about, _, _ in told}
    others = [name for name in known if name not in heard_of]
    chosen = rng.sample(others, min(count, len(others)))
    return [[_hop((name, *rng.choice([*known[name].items()])))] for name in chosen]


def _hop(fact: Fact) -> Hop:
    subject, relation, value = fact
    return Hop(relation=relation, subject=subject, value=value)
