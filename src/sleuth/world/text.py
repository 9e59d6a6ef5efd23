"""Training text for the tiny base model: what it reads before it ever meets a reward.

A row is pieces of text whose author says what is learned: `teacher` pieces in full, `source` pieces lightly, the rest
not at all. Every row is drawn from a small world of its own, with facts of its own, so that nothing can be memorised;
only names of the train split and wordings of the train split occur. The kinds of row:

- reading: passages, then what they say, relation by relation;
- twins: the same, with passages that only a name tells apart;
- phrasing: questions in many wordings, each followed by the plain thought of what to look up;
- lookup: things wanted, looked up and found, without a question;
- plan: questions, each with all that must be looked up, without looking;
- episode: how a careless base model goes about a question (see `sleuth.world.habits`);
- placing: what a tool returned, and of many a word in it the snippet that it is in (see `sleuth.world.citing`);
- citing: what a tool returned, and of many a thing what an honest refiner thinks and says, with its source;
- strangers: the same, also of what a tool output tells nothing about;
- namesakes: what a tool returned about entities that share words of their names, and where each thing is told;
- refining: what a tool returned for a question, and what a careless refiner makes of it (see `sleuth.world.refining`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from sleuth.recipe.data import TextKind
from sleuth.types import Piece
from sleuth.world import names
from sleuth.world.citing import STRANGERS, citing_row, namesakes_row, placing_row
from sleuth.world.facts import World, draw_world, firm_names, person_names, work_names
from sleuth.world.habits import Careless
from sleuth.world.library import Shelf, articles
from sleuth.world.names import Split, split_of, words_for
from sleuth.world.questions import Facts, Question, ask, one_hops, two_hops
from sleuth.world.refining import refining_row
from sleuth.world.thoughts import DIALECT, PROMPT, Row, goal, read_aloud, results


class SmallWorlds:
    """Worlds of a few people who share names, drawn from one split of a large world's names."""

    def __init__(self, people: int, split: Split = "train") -> None:
        self.words = words_for(people)
        self.split = split
        self.firms = [name for name in firm_names(self.words, people // 10) if split_of(name) == split]
        self.works = [name for name in work_names(self.words, people // 2) if split_of(name) == split]
        self.people = {name for name in person_names(self.words) if split_of(name) == split}
        self._firm_set, self._work_set = set(self.firms), set(self.works)

    def draw(self, rng: random.Random, size: int) -> World:
        """At most `size` people, three firms, three works, two fairs. Given and family names recur among the people."""
        side = 4 if size > 4 else 3
        firsts, families = rng.sample(self.words.first, side), rng.sample(self.words.family, side)
        known = [name for first in firsts for family in families if (name := f"{first} {family}") in self.people]
        if len(known) < 2:
            return self.draw(rng, size)
        return self._furnish(rng, rng.sample(known, min(size, len(known))))

    def draw_twins(self, rng: random.Random, size: int) -> World:
        """Exactly `size` people, no two of whom share a name."""
        firsts, families = rng.sample(self.words.first, 3 * size), rng.sample(self.words.family, 3 * size)
        known = [name for pair in zip(firsts, families, strict=True) if (name := " ".join(pair)) in self.people]
        return self._furnish(rng, known[:size]) if len(known) >= size else self.draw_twins(rng, size)

    def draw_alike(self, rng: random.Random, size: int) -> World:
        """At most `size` people, with firms called after their families and works whose titles share words: what a
        search engine would confuse."""
        firsts, families = rng.sample(self.words.first, 3), rng.sample(self.words.family, 3)
        people = [name for first in firsts for family in families if (name := f"{first} {family}") in self.people]
        firms = [name for family in families for kind in names.FIRMS if (name := f"{family} {kind}") in self._firm_set]
        adjectives, nouns = rng.sample(names.ADJECTIVES, 3), rng.sample(names.NOUNS, 3)
        works = [name for a in adjectives for noun in nouns if (name := f"The {a} {noun}") in self._work_set]
        if min(len(people), len(firms), len(works)) < 3:
            return self.draw_alike(rng, size)
        return draw_world(
            rng,
            self.words,
            people=rng.sample(people, min(size, len(people))),
            firms=rng.sample(firms, min(5, len(firms))),
            works=rng.sample(works, min(5, len(works))),
            fairs=3,
        )

    def _furnish(self, rng: random.Random, people: Sequence[str]) -> World:
        return draw_world(
            rng, self.words, people=people, firms=rng.sample(self.firms, 3), works=rng.sample(self.works, 3), fairs=2
        )


class TextRows:
    """Rows of training text, each a function of (key, index) alone."""

    def __init__(
        self, people: int, mix: Mapping[TextKind, float], key: tuple[int, ...], split: Split = "train"
    ) -> None:
        self.worlds = SmallWorlds(people, split)
        self.split: Split = split
        self.kinds = tuple(mix)
        self.shares = tuple(mix.values())
        self.key = key
        self._writers: dict[TextKind, Callable[[random.Random], Row]] = {
            "reading": self.reading,
            "twins": self.twins,
            "phrasing": self.phrasing,
            "lookup": self.lookup,
            "plan": self.plan,
            "episode": self.episode,
            "placing": self.placing,
            "citing": self.citing,
            "strangers": self.strangers,
            "namesakes": self.namesakes,
            "refining": self.refining,
        }

    def row(self, index: int) -> Row:
        """Row `index` of the endless text."""
        rng = random.Random(f"text {self.key} {index}")
        [kind] = rng.choices(self.kinds, self.shares)
        return self._writers[kind](rng)

    def reading(self, rng: random.Random) -> Row:
        """One to four passages of any kind, then what they say in random order."""
        count = rng.randint(1, 4)
        world = self.worlds.draw(rng, rng.randint(2, 6))
        known = [article for article in articles(world, rng) if article.title not in world.towns]
        towns = [article for article in articles(world, rng) if article.title in world.towns]
        shown = rng.sample([*rng.sample(known, count), rng.choice(towns)], count)
        return read_aloud(shown, rng) if any(article.facts for article in shown) else self.reading(rng)

    def twins(self, rng: random.Random) -> Row:
        """Two to five passages of one kind about different people: only the name tells them apart."""
        world = self.worlds.draw_twins(rng, rng.randint(2, 5))
        about_people = [article for article in articles(world, rng) if article.about in world.people]
        shown = about_people[rng.randrange(2) :: 2]
        return read_aloud(rng.sample(shown, len(shown)), rng)

    def phrasing(self, rng: random.Random) -> Row:
        """Six questions, each with the plain name of what to look up first."""
        row: Row = []
        for _ in range(6):
            question = self.question(rng, self.worlds.draw(rng, rng.randint(2, 6)))
            row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
            row.append(Piece(text=goal(question.hops[0]), author="teacher"))
            row.append(Piece(text=f"{DIALECT.think.close}\n", author="source"))
        return row

    def lookup(self, rng: random.Random) -> Row:
        """Things looked up by somebody who knows how: what is wanted, a query, results, and what they say. Half of the
        time what was found is itself looked up next."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        shelf, facts = Shelf([*articles(world, rng)]), facts_of(world)
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

    def plan(self, rng: random.Random) -> Row:
        """Five questions, each with the plain names of what to look up, one after the other."""
        row: Row = []
        for _ in range(5):
            question = self.question(rng, self.worlds.draw_alike(rng, rng.randint(3, 6)))
            row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
            first, *later = question.hops
            row.append(Piece(text=f"{goal(first)}{DIALECT.think.close}", author="teacher"))
            for before, hop in zip(question.hops, later, strict=False):
                row.append(Piece(text=DIALECT.think.around(f"{goal(before)} is {before.value}"), author="env"))
                row.append(Piece(text=DIALECT.think.around(goal(hop)), author="teacher"))
            row.append(Piece(text="\n", author="env"))
        return row

    def episode(self, rng: random.Random) -> Row:
        """A question, and what a careless base model makes of it."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        question = self.question(rng, world)
        return Careless(rng, question, world, places=self.worlds.words.places, firms=self.worlds.firms).episode()

    def placing(self, rng: random.Random) -> Row:
        """What a tool returned for a question, and which snippet its words are in."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        return placing_row(rng, self.question(rng, world), world, self.split)

    def citing(self, rng: random.Random) -> Row:
        """What a tool returned for a question, and what an honest refiner says of all that it tells."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        return citing_row(rng, self.question(rng, world), world, self.split)

    def strangers(self, rng: random.Random) -> Row:
        """The same, of which half is asked about entities that nothing is told about."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        return citing_row(rng, self.question(rng, world), world, self.split, strangers=STRANGERS)

    def namesakes(self, rng: random.Random) -> Row:
        """What a tool returned about entities that share words of their names, and what each is told to be."""
        return namesakes_row(rng, self.worlds.draw_alike(rng, 6))

    def refining(self, rng: random.Random) -> Row:
        """What a tool returned for a question, and what a careless refiner makes of it."""
        world = self.worlds.draw_alike(rng, rng.randint(3, 6))
        return refining_row(rng, self.question(rng, world), world, self.split)

    def question(self, rng: random.Random, world: World) -> Question:
        """A question about a small world, one-hop or two-hop alike often."""
        facts = facts_of(world)
        subject = rng.choice([*world.people, *world.works, *world.firms])
        two = [*two_hops(facts, subject)] if rng.random() < 0.5 else []
        return ask(rng.choice(two or [*one_hops(facts, subject)]), self.split, rng)


def facts_of(world: World) -> Facts:
    """All that the world's encyclopaedia says of each entity."""
    known: dict[str, dict[str, str]] = {}
    for article in articles(world, random.Random(0)):
        known.setdefault(article.about, {}).update(article.facts)
    return known
