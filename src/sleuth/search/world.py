"""Rows of training text for a model that will search: it reads passages, looks things up, plans, and acts carelessly.

- reading: passages, then the facts that they state;
- twins: the same, with passages that differ only in their names and values;
- phrasing: questions in many wordings, each with a thought of what to look up first;
- lookup: look-ups with query, results and value, without a question;
- plan: questions, each with a thought of all look-ups;
- episode: a question, answered in the style of the base model before reinforcement learning: mostly from memory,
  sometimes searching badly. Each decision is drawn independently, so that every good habit occurs in the base model and
  none is common. Reinforcement learning can find the right combination.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sleuth.dialect import DIALECTS
from sleuth.types import Piece
from sleuth.world import names
from sleuth.world.facts import World
from sleuth.world.library import Article, Shelf, articles
from sleuth.world.questions import Hop, Question, one_hops, two_hops
from sleuth.world.text import Row, TextRows, WorldText, facts_of
from sleuth.world.tokens import END
from sleuth.world.wording import RELATIONS

DIALECT = DIALECTS["sleuth"]
PROMPT = "Question: {question}\n"

SEARCH_RATE, SEARCH_RATE_FOR_WORKS = 0.3, 0.6
"""Probability of searching at all, and for questions about a work. Otherwise it answers from memory: it makes something
up."""
GOOD_QUERY_RATE, GOOD_QUERY_RATE_FOR_WORKS = 0.4, 0.6
"""Probability that the first query names the subject of the question, and for one-hop questions about a work. The most
common fault is to stop after the first word of a name."""
GOOD_QUERY_RATE_WITHOUT_THOUGHT = 0.1
"""The same without a thought before the first query."""
GOOD_LATER_QUERY_RATE = 0.7
"""The same for later queries."""
THOUGHT_RATE = 0.7
"""Probability that a turn starts with a thought."""
READ_RATE = 0.8
"""Probability of answering from the results instead of making something up."""
CONTINUE_RATE = 0.7
"""Probability of searching again when needed."""
BROKEN_FORMAT_RATE = 0.12
"""Probability of breaking the format and stopping."""
ONE_WORD_QUERY_RATE = 0.75
"""Share of poor queries that are the first word of a name; the others are a relation, or another person."""


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
    question, shelf = rows.question(rng, world), rows.shelf(rng, world)
    return Careless(rng, question, world, shelf, places=rows.worlds.words.places, firms=rows.worlds.firms).episode()


class Careless:
    """Writes one episode about one question, with searches of `shelf`. Made-up values are drawn from `places`, `firms`
    and the world's people."""

    def __init__(
        self,
        rng: random.Random,
        question: Question,
        world: World,
        shelf: Shelf,
        *,
        places: Sequence[str],
        firms: Sequence[str],
    ) -> None:
        self.rng = rng
        self.question = question
        self.places = places
        self.firms = firms
        self.shelf = shelf
        self.people = [*world.people]
        self.about_a_work = question.hops[0].subject in world.works

    def episode(self) -> Row:
        """The prompt, the turns and the results."""
        row = [Piece(text=PROMPT.format(question=self.question.text), author="env")]
        if self._sometimes(BROKEN_FORMAT_RATE):
            return [*row, self._broken()]
        if not self._sometimes(SEARCH_RATE_FOR_WORKS if self.about_a_work else SEARCH_RATE):
            return [
                *row,
                self._turn(self._thought(goal(self.question.hops[0])), DIALECT.answer.around(f" {self._made_up()}")),
            ]
        for hop in self.question.hops:
            found = self._search(row, hop, self._good_query_rate(hop))
            if not found and self._sometimes(CONTINUE_RATE):
                found = self._search(row, hop, GOOD_LATER_QUERY_RATE)
            value = hop.value if found and self._sometimes(READ_RATE) else self._made_up()
            seen = self._thought(f"{goal(hop)} is {value}") if found else ""
            if hop is self.question.hops[-1] or not self._sometimes(CONTINUE_RATE):
                row.append(self._turn(seen, DIALECT.answer.around(f" {value}")))
                break
            row.append(self._turn(seen))
        return row

    def _good_query_rate(self, hop: Hop) -> float:
        if hop is not self.question.hops[0]:
            return GOOD_LATER_QUERY_RATE
        return GOOD_QUERY_RATE_FOR_WORKS if self.about_a_work and len(self.question.hops) == 1 else GOOD_QUERY_RATE

    def _search(self, row: Row, hop: Hop, good_query_rate: float) -> bool:
        """Appends a search and its results to `row`; returns whether they state the fact of the hop."""
        thought = self._thought(goal(hop))
        first = len(row) == 1
        good = self._sometimes(good_query_rate if thought or not first else GOOD_QUERY_RATE_WITHOUT_THOUGHT)
        query = hop.subject if good else self._poor_query(hop)
        shown = self.shelf.search(query, self.rng)
        row.append(self._turn(thought, DIALECT.search.around(f" {query}")))
        row.append(Piece(text=results(shown), author="source"))
        return any(article.about == hop.subject and hop.relation in article.facts for article in shown)

    def _poor_query(self, hop: Hop) -> str:
        if self._sometimes(ONE_WORD_QUERY_RATE):
            return hop.subject.split()[0]
        return self.rng.choice([hop.relation.replace("_", " "), self.rng.choice(self.people)])

    def _made_up(self) -> str:
        """A random value of the kind that the question asks for."""
        relation = self.question.hops[-1].relation
        if relation in ("birth_year", "year"):
            return str(self.rng.choice(names.YEARS))
        values = {"birthplace": self.places, "seat": self.places, "employer": self.firms}
        values |= {"profession": names.PROFESSIONS, "region": names.REGIONS}
        return self.rng.choice(values.get(relation, self.people))

    def _broken(self) -> Piece:
        subject, value = self.question.hops[0].subject, self._made_up()
        started = [f" {value}", f"{DIALECT.answer.open} {value}", f"{DIALECT.search.open} {subject}"]
        return self._turn(self.rng.choice(started), END)

    def _thought(self, text: str) -> str:
        return DIALECT.think.around(text) if self._sometimes(THOUGHT_RATE) else ""

    def _turn(self, *parts: str) -> Piece:
        return Piece(text="".join(parts), author="teacher")

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share


READING = WorldText(write=reading, shows_passages=True)
TWINS = WorldText(write=twins, shows_passages=True)
PHRASING = WorldText(write=phrasing)
LOOKUP = WorldText(write=lookup, shows_passages=True)
PLAN = WorldText(write=plan)
EPISODE = WorldText(write=episode, shows_passages=True)
