"""Training rows about a tool output: which snippet a word is in, and what an honest refiner answers, with citations.

- placing: a tool output, and the snippet id of some of its words;
- citing: a tool output, and an honest refiner's thoughts and answers for several look-ups, with citations;
- strangers: the same, with look-ups of entities that the tool output does not mention;
- namesakes: a tool output about entities that share words of their names, and the snippet id of each fact;
- refining: a question, a tool output, and the thought and answer of a refiner before reinforcement learning: it often
  cites the first snippet, and often answers although no snippet states the answer. Reinforcement learning can find the
  honest answers among them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial

from sleuth.cite.dialect import ANSWER_ONLY, REFINERS
from sleuth.cite.world_tool_outputs import (
    IDS,
    Fact,
    Snippet,
    ToolOutputs,
    as_text,
    fact_of,
    honest_answer,
    reasoning_of,
    snippet_ids,
    titled,
)
from sleuth.search.world import goal
from sleuth.types import Piece
from sleuth.world.facts import World
from sleuth.world.library import Article, Library
from sleuth.world.questions import Facts, Hop, Question
from sleuth.world.text import Row, TextRows, WorldText
from sleuth.world.wording import STALE, UNANSWERED

NAME_OR_NUMBER = re.compile(r" (?!(?:As|Born|For|In|It|The)\b)(?:[A-Z]\w+|\d+)")
THINKING = REFINERS["thinking"]
NOWHERE = " not in the tool output"
"""The end of a thought about a fact that no snippet states."""
MAX_PLACED_WORDS = 24
"""Maximum number of words of a tool output to locate."""
ASKED_STRANGERS = 4
"""Number of entities to ask about that the tool output does not mention, in rows of kind "strangers"."""
NAMESAKES_SHOWN = (3, 6)
"""Minimum and maximum number of snippets about namesakes."""
MAX_STATED, MAX_UNSTATED, MAX_CHAINS = 3, 2, 2
"""Maximum number of look-ups of stated facts, of facts that are not stated, and in two hops."""
CITE_FIRST_RATE = 0.6
"""Probability of citing the first snippet for all facts."""
ANSWER_ANYWAY_RATE = 0.5
"""Probability of answering with another entity's value if no snippet states the right one."""
TAGS = ("<snippet id=", "</snippet>", ANSWER_ONLY.information.open, ANSWER_ONLY.information.close)
"""Tags that are single tokens in a tokenizer for such rows."""


def words() -> Iterator[str]:
    """Texts with the words that such rows add to those of the world."""
    yield from (f" {text} " for text in (UNANSWERED, *STALE, "Reasoning: I need", "First I need what I find, then"))
    yield "The tool\nReasoning:\nI need\nFirst>"
    yield from (f"={id_}>" for id_ in IDS)


def drawn(rows: TextRows, rng: random.Random) -> tuple[World, Question]:
    """A small world of confusable entities and a question about it."""
    world = rows.worlds.draw_confusable(rng, rng.randint(3, 6))
    return world, rows.question(rng, world)


def _output(snippets: Sequence[Snippet]) -> Piece:
    return Piece(text=ANSWER_ONLY.information.around(f"\n{as_text(snippets)}\n"), author="env")


def _given(text: str) -> Piece:
    return Piece(text=text, author="source")


def _taught(text: str) -> Piece:
    return Piece(text=text, author="teacher")


def placing(rows: TextRows, rng: random.Random) -> Row:
    """A tool output, and the snippet id of some of its words."""
    world, question = drawn(rows, rng)
    _, snippets = ToolOutputs(world, Library(world, rng), rows.split, rng).draw(question)
    row = [_output(snippets)]
    for word, id_ in _words_in_one_snippet(rng, snippets):
        row += [_given(f"\n{word}<snippet id="), _taught(id_), _given("></snippet>")]
    return row


def citing(rows: TextRows, rng: random.Random, *, strangers: int = 0) -> Row:
    """A tool output, and thoughts and answers of an honest refiner for several look-ups, also of `strangers` entities
    that the output does not mention."""
    world, question = drawn(rows, rng)
    library = Library(world, rng)
    _, snippets = ToolOutputs(world, library, rows.split, rng, unanswerable=0.5).draw(question)
    stated = snippet_ids(snippets)
    row = [_output(snippets)]
    lookups = _lookups(rng, question.hops, [*stated], library)
    names = [*world.people, *world.works, *world.firms]
    for stranger in _strangers(rng, [*stated], {name: library[name] for name in names}, strangers):
        lookups.insert(rng.randint(0, len(lookups)), stranger)
    for hops in lookups:
        row.append(_given(f"\nReasoning: {reasoning_of(hops)}{THINKING.think.open}"))
        for hop in hops:
            row += [_given(f"{goal(hop)} is"), _taught(thought_ending(hop, stated.get(fact_of(hop))))]
            if fact_of(hop) not in stated:
                break
        row.append(_given(f"{THINKING.think.close}{THINKING.answer.open}"))
        row += [_taught(honest_answer(hops, stated)), _given(THINKING.answer.close)]
    return row


def namesakes(rows: TextRows, rng: random.Random) -> Row:
    """Snippets of one kind about entities that share words of their names, and thoughts about the facts of each."""
    world = rows.worlds.draw_confusable(rng, 6)
    by_kind: dict[tuple[str, ...], list[Article]] = {}
    for article in Library(world, rng).articles:
        if article.about not in world.towns and article.facts:
            by_kind.setdefault(tuple(article.facts), []).append(article)
    alike = rng.choice([*by_kind.values()])
    shown = rng.sample(alike, min(rng.randint(*NAMESAKES_SHOWN), len(alike)))
    ids = rng.sample(IDS, len(shown))
    snippets = [
        Snippet(id=id_, text=titled(article.title, article.text), facts=())
        for id_, article in zip(ids, shown, strict=True)
    ]
    row = [_output(snippets)]
    stated = [
        (Hop(relation=relation, subject=article.about, value=value), id_)
        for id_, article in zip(ids, shown, strict=True)
        for relation, value in article.facts.items()
    ]
    for hop, id_ in rng.sample(stated, len(stated)):
        row.append(_given(f"\n{THINKING.think.open}{goal(hop)} is"))
        row += [_taught(thought_ending(hop, id_)), _given(THINKING.think.close)]
    return row


def refining(rows: TextRows, rng: random.Random) -> Row:
    """A question with its tool output, as the environment formats them, then a thought and an answer."""
    world, question = drawn(rows, rng)
    _, snippets = ToolOutputs(world, Library(world, rng), rows.split, rng).draw(question)
    asked = f"Question: {question.text}\nReasoning: {reasoning_of(question.hops)}\n"
    hops, stated = _believed(rng, question.hops, snippets)
    thought = THINKING.think.around("".join(_thoughts(hops, stated)))
    answer = THINKING.answer.around(honest_answer(hops, stated))
    return [Piece(text=f"{asked}{_output(snippets).text}", author="env"), _taught(f"{thought}{answer}")]


def _thoughts(hops: Sequence[Hop], stated: dict[Fact, str]) -> Iterator[str]:
    for hop in hops:
        yield f"{goal(hop)} is{thought_ending(hop, stated.get(fact_of(hop)))}"
        if fact_of(hop) not in stated:
            return


def _believed(
    rng: random.Random, hops: Sequence[Hop], snippets: Sequence[Snippet]
) -> tuple[Sequence[Hop], dict[Fact, str]]:
    """The hops with the values that the refiner believes, and the snippet that it cites for each fact."""
    stated = snippet_ids(snippets)
    believed = []
    for hop in hops:
        if fact_of(hop) not in stated and rng.random() < ANSWER_ANYWAY_RATE:
            alike = [fact for fact in stated if fact[1] == hop.relation]
            if alike:
                other = rng.choice(alike)
                hop = Hop(subject=hop.subject, relation=hop.relation, value=other[2])
                stated[fact_of(hop)] = stated[other]
        believed.append(hop)
    if rng.random() < CITE_FIRST_RATE:
        stated = dict.fromkeys(stated, snippets[0].id)
    return believed, stated


def thought_ending(hop: Hop, id_: str | None) -> str:
    """The end of a thought about a hop: its value and the id of the snippet, or that no snippet states it."""
    return f" {hop.value} [{id_}]" if id_ else NOWHERE


def _words_in_one_snippet(rng: random.Random, snippets: Sequence[Snippet]) -> list[tuple[str, str]]:
    """Names and numbers that only one snippet contains, each with the id of that snippet."""
    holders: dict[str, list[str]] = {}
    for snippet in snippets:
        for word in dict.fromkeys(NAME_OR_NUMBER.findall(f" {snippet.text}")):
            holders.setdefault(word, []).append(snippet.id)
    unique = [(word, ids[0]) for word, ids in holders.items() if len(ids) == 1]
    return rng.sample(unique, min(MAX_PLACED_WORDS, len(unique)))


def _lookups(rng: random.Random, asked: Sequence[Hop], stated: list[Fact], library: Library) -> list[Sequence[Hop]]:
    """The question's hops, some other stated facts, some chains of two facts, and some facts about the same entities
    that are not stated, in random order."""
    subjects = {about for about, _, _ in stated}
    known = sorted((subject, *fact) for subject in subjects for fact in library[subject].items())
    unstated = [fact for fact in known if fact not in stated]
    chosen = rng.sample(stated, min(MAX_STATED, len(stated)))
    chosen += rng.sample(unstated, min(MAX_UNSTATED, len(unstated)))
    chains = [(first, then) for first in stated for then in known if first[2] == then[0]]
    lookups = [asked, *([_hop(fact)] for fact in chosen)]
    lookups += [[_hop(first), _hop(then)] for first, then in rng.sample(chains, min(MAX_CHAINS, len(chains)))]
    return rng.sample(lookups, len(lookups))


def _strangers(rng: random.Random, stated: list[Fact], known: Facts, count: int) -> list[Sequence[Hop]]:
    """One fact about each of `count` entities without any stated fact."""
    mentioned = {about for about, _, _ in stated}
    others = [name for name in known if name not in mentioned]
    chosen = rng.sample(others, min(count, len(others)))
    return [[_hop((name, *rng.choice([*known[name].items()])))] for name in chosen]


def _hop(fact: Fact) -> Hop:
    subject, relation, value = fact
    return Hop(relation=relation, subject=subject, value=value)


def _vocabulary() -> tuple[Iterator[str], Sequence[str]]:
    return words(), TAGS


PLACING = WorldText(write=placing, vocabulary=_vocabulary)
CITING = WorldText(write=citing, vocabulary=_vocabulary)
STRANGERS = WorldText(write=partial(citing, strangers=ASKED_STRANGERS))
NAMESAKES = WorldText(write=namesakes)
REFINING = WorldText(write=refining)
