"""Rows of training text for a model that will search: it reads passages, looks things up, plans, and acts carelessly.

- reading: passages, then the facts that they state;
- twins: the same, with passages that differ only in their names and values;
- phrasing: questions in many wordings, each with a thought of what to look up first;
- lookup: look-ups with query, results and value, without a question;
- plan: questions, each with a thought of all look-ups;
- episode: a question, answered by a careless search agent (see `sleuth.search.world_habits`).
"""

from __future__ import annotations

import random

from sleuth.search.world_habits import Careless
from sleuth.search.world_thoughts import DIALECT, PROMPT, goal, reading_row, results
from sleuth.types import Piece
from sleuth.world.library import articles
from sleuth.world.questions import one_hops, two_hops
from sleuth.world.text import Row, TextRows, WorldText, facts_of


def reading(rows: TextRows, rng: random.Random) -> Row:
    """One to four passages of any kind, then their facts in random order."""
    count = rng.randint(1, 4)
    world = rows.worlds.draw(rng, rng.randint(2, 6))
    known = [article for article in articles(world, rng) if article.title not in world.towns]
    towns = [article for article in articles(world, rng) if article.title in world.towns]
    shown = rng.sample([*rng.sample(known, count), rng.choice(towns)], count)
    if not any(article.facts for article in shown):
        return reading(rows, rng)
    return reading_row(rows.distract(rng, shown, [*known, *towns]), rng)


def twins(rows: TextRows, rng: random.Random) -> Row:
    """Two to five passages of one kind about different people."""
    world = rows.worlds.draw_twins(rng, rng.randint(2, 5))
    about_people = [article for article in articles(world, rng) if article.about in world.people]
    shown = about_people[rng.randrange(2) :: 2]
    return reading_row(rows.distract(rng, rng.sample(shown, len(shown)), about_people), rng)


def phrasing(rows: TextRows, rng: random.Random) -> Row:
    """Six questions, each with a thought of what to look up first."""
    row: Row = []
    for _ in range(6):
        question = rows.question(rng, rows.worlds.draw(rng, rng.randint(2, 6)))
        row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
        row.append(Piece(text=goal(question.hops[0]), author="teacher"))
        row.append(Piece(text=f"{DIALECT.think.close}\n", author="source"))
    return row


def lookup(rows: TextRows, rng: random.Random) -> Row:
    """Look-ups by an ideal agent: thought, query, results and the value. Half of the time the value is looked up
    next."""
    world = rows.worlds.draw_confusable(rng, rng.randint(3, 6))
    shelf, facts = rows.shelf(rng, world), facts_of(world)
    row: Row = []
    for subject in rng.sample([*world.people, *world.works, *world.firms, rng.choice([*world.towns])], 2):
        chains = [*two_hops(facts, subject)] if rng.random() < 0.5 else []
        for at, hop in enumerate(rng.choice(chains or [*one_hops(facts, subject)])):
            wanted = goal(hop).removesuffix(hop.subject).rstrip()
            row.append(Piece(text=f"{DIALECT.think.open}{wanted}", author="source"))
            row.append(Piece(text=f" {hop.subject}", author="teacher" if at else "source"))
            row.append(Piece(text=f"{DIALECT.think.close}{DIALECT.search.open}", author="source"))
            row.append(Piece(text=f" {hop.subject}{DIALECT.search.close}", author="teacher"))
            row.append(Piece(text=results(shelf.search(hop.subject, rng)), author="source"))
            row.append(Piece(text=DIALECT.think.around(f"{goal(hop)} is {hop.value}"), author="teacher"))
        row.append(Piece(text="\n", author="source"))
    return row


def plan(rows: TextRows, rng: random.Random) -> Row:
    """Five questions, each with a thought of all look-ups in order."""
    row: Row = []
    for _ in range(5):
        question = rows.question(rng, rows.worlds.draw_confusable(rng, rng.randint(3, 6)))
        row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
        first, *later = question.hops
        row.append(Piece(text=f"{goal(first)}{DIALECT.think.close}", author="teacher"))
        for before, hop in zip(question.hops, later, strict=False):
            row.append(Piece(text=DIALECT.think.around(f"{goal(before)} is {before.value}"), author="env"))
            row.append(Piece(text=DIALECT.think.around(goal(hop)), author="teacher"))
        row.append(Piece(text="\n", author="env"))
    return row


def episode(rows: TextRows, rng: random.Random) -> Row:
    """A question, and an episode of a careless agent."""
    world = rows.worlds.draw_confusable(rng, rng.randint(3, 6))
    question = rows.question(rng, world)
    shelf = rows.shelf(rng, world)
    return Careless(rng, question, world, shelf, places=rows.worlds.words.places, firms=rows.worlds.firms).episode()


READING = WorldText(write=reading, shows_passages=True)
TWINS = WorldText(write=twins, shows_passages=True)
PHRASING = WorldText(write=phrasing)
LOOKUP = WorldText(write=lookup, shows_passages=True)
PLAN = WorldText(write=plan)
EPISODE = WorldText(write=episode, shows_passages=True)
