"""Supervised training text for the tiny base model.

A row is a list of pieces, whose author decides their weight in the loss: 1 for `teacher`, `source_weight` for `source`,
0 for the rest. Every row has a small world with facts of its own, so that nothing can be memorised; names and wordings
are those of one split. The kinds of row:

- reading: passages, then the facts that they state;
- twins: the same, with passages that differ only in their names and values;
- phrasing: questions in many wordings, each with a thought of what to look up first;
- lookup: look-ups with query, results and value, without a question;
- plan: questions, each with a thought of all look-ups;
- episode: a question, answered by a careless search agent (see `sleuth.search.world_habits`);
- placing: a tool output, and the snippet id of some of its words (see `sleuth.cite.world_citing`);
- citing: a tool output, and an honest refiner's thoughts and answers for several look-ups, with citations;
- strangers: the same, with look-ups of entities that the tool output does not mention;
- namesakes: a tool output about entities that share words of their names, and the snippet id of each fact;
- refining: a question, a tool output and a careless refiner's answer (see `sleuth.cite.world_refining`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sleuth.cite.world_citing import STRANGERS, TAGS, citing_row, namesakes_row, placing_row
from sleuth.cite.world_citing import words as citing_words
from sleuth.cite.world_refining import refining_row
from sleuth.search.world_habits import Careless
from sleuth.search.world_thoughts import DIALECT, PROMPT, Row, goal, reading_row, results
from sleuth.types import Piece
from sleuth.world import names
from sleuth.world.facts import World, draw_world, firm_names, person_names, work_names
from sleuth.world.library import Article, Distraction, Shelf, articles
from sleuth.world.names import Split, split_of, words_for
from sleuth.world.questions import Facts, Question, ask, one_hops, two_hops
from sleuth.world.tokens import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.recipe.data import TextKind, WorldTextRecipe


def make_text_tokenizer(data: WorldTextRecipe) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that begins with these texts."""
    more = (citing_words(), TAGS) if {"placing", "citing"} & {*data.mix} else ()
    return make_tokenizer(data.people, *more)


class SmallWorlds:
    """Worlds of a few people with similar names, drawn from one split of the names of a large world."""

    def __init__(self, people: int, split: Split = "train") -> None:
        self.words = words_for(people)
        self.split = split
        self.firms = [name for name in firm_names(self.words, people // 10) if split_of(name) == split]
        self.works = [name for name in work_names(self.words, people // 2) if split_of(name) == split]
        self.people = {name for name in person_names(self.words) if split_of(name) == split}
        self._firm_set, self._work_set = set(self.firms), set(self.works)

    def draw(self, rng: random.Random, size: int) -> World:
        """At most `size` people, some with a given or family name in common, three firms, three works and two fairs."""
        side = 4 if size > 4 else 3
        firsts, families = rng.sample(self.words.first, side), rng.sample(self.words.family, side)
        known = [name for first in firsts for family in families if (name := f"{first} {family}") in self.people]
        if len(known) < 2:
            return self.draw(rng, size)
        return self._world_of(rng, rng.sample(known, min(size, len(known))))

    def draw_twins(self, rng: random.Random, size: int) -> World:
        """Exactly `size` people without a given or family name in common; firms, works and fairs as in `draw`."""
        firsts, families = rng.sample(self.words.first, 3 * size), rng.sample(self.words.family, 3 * size)
        known = [name for pair in zip(firsts, families, strict=True) if (name := " ".join(pair)) in self.people]
        return self._world_of(rng, known[:size]) if len(known) >= size else self.draw_twins(rng, size)

    def draw_confusable(self, rng: random.Random, size: int) -> World:
        """At most `size` people, firms named after their families, and works whose titles share words: entities that a
        search engine would confuse."""
        firsts, families = rng.sample(self.words.first, 3), rng.sample(self.words.family, 3)
        people = [name for first in firsts for family in families if (name := f"{first} {family}") in self.people]
        firms = [name for family in families for kind in names.FIRMS if (name := f"{family} {kind}") in self._firm_set]
        adjectives, nouns = rng.sample(names.ADJECTIVES, 3), rng.sample(names.NOUNS, 3)
        works = [name for a in adjectives for noun in nouns if (name := f"The {a} {noun}") in self._work_set]
        if min(len(people), len(firms), len(works)) < 3:
            return self.draw_confusable(rng, size)
        return draw_world(
            rng,
            self.words,
            people=rng.sample(people, min(size, len(people))),
            firms=rng.sample(firms, min(5, len(firms))),
            works=rng.sample(works, min(5, len(works))),
            fairs=3,
        )

    def _world_of(self, rng: random.Random, people: Sequence[str]) -> World:
        return draw_world(
            rng, self.words, people=people, firms=rng.sample(self.firms, 3), works=rng.sample(self.works, 3), fairs=2
        )


class TextRows:
    """Rows of training text, each a function of (key, index) alone."""

    def __init__(
        self,
        people: int,
        mix: Mapping[TextKind, float],
        key: tuple[int, ...],
        split: Split = "train",
        *,
        distracted: float = 0.0,
    ) -> None:
        self.distracted = distracted
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
        """Row number `index`; there is no last one."""
        rng = random.Random(f"text {self.key} {index}")
        [kind] = rng.choices(self.kinds, self.shares)
        return self._writers[kind](rng)

    def reading(self, rng: random.Random) -> Row:
        """One to four passages of any kind, then their facts in random order."""
        count = rng.randint(1, 4)
        world = self.worlds.draw(rng, rng.randint(2, 6))
        known = [article for article in articles(world, rng) if article.title not in world.towns]
        towns = [article for article in articles(world, rng) if article.title in world.towns]
        shown = rng.sample([*rng.sample(known, count), rng.choice(towns)], count)
        if not any(article.facts for article in shown):
            return self.reading(rng)
        return reading_row(self._distract(rng, shown, [*known, *towns]), rng)

    def twins(self, rng: random.Random) -> Row:
        """Two to five passages of one kind about different people."""
        world = self.worlds.draw_twins(rng, rng.randint(2, 5))
        about_people = [article for article in articles(world, rng) if article.about in world.people]
        shown = about_people[rng.randrange(2) :: 2]
        return reading_row(self._distract(rng, rng.sample(shown, len(shown)), about_people), rng)

    def phrasing(self, rng: random.Random) -> Row:
        """Six questions, each with a thought of what to look up first."""
        row: Row = []
        for _ in range(6):
            question = self.question(rng, self.worlds.draw(rng, rng.randint(2, 6)))
            row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
            row.append(Piece(text=goal(question.hops[0]), author="teacher"))
            row.append(Piece(text=f"{DIALECT.think.close}\n", author="source"))
        return row

    def lookup(self, rng: random.Random) -> Row:
        """Look-ups by an ideal agent: thought, query, results and the value. Half of the time the value is looked up
        next."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        shelf, facts = self._shelf(rng, world), facts_of(world)
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
        """Five questions, each with a thought of all look-ups in order."""
        row: Row = []
        for _ in range(5):
            question = self.question(rng, self.worlds.draw_confusable(rng, rng.randint(3, 6)))
            row.append(Piece(text=f"{PROMPT.format(question=question.text)}{DIALECT.think.open}", author="env"))
            first, *later = question.hops
            row.append(Piece(text=f"{goal(first)}{DIALECT.think.close}", author="teacher"))
            for before, hop in zip(question.hops, later, strict=False):
                row.append(Piece(text=DIALECT.think.around(f"{goal(before)} is {before.value}"), author="env"))
                row.append(Piece(text=DIALECT.think.around(goal(hop)), author="teacher"))
            row.append(Piece(text="\n", author="env"))
        return row

    def episode(self, rng: random.Random) -> Row:
        """A question, and an episode of a careless agent."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        question = self.question(rng, world)
        shelf = self._shelf(rng, world)
        return Careless(rng, question, world, shelf, places=self.worlds.words.places, firms=self.worlds.firms).episode()

    def placing(self, rng: random.Random) -> Row:
        """A tool output, and the snippet id of some of its words."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        return placing_row(rng, self.question(rng, world), world, self.split)

    def citing(self, rng: random.Random) -> Row:
        """A tool output, and an honest refiner's answers for several look-ups."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        return citing_row(rng, self.question(rng, world), world, self.split)

    def strangers(self, rng: random.Random) -> Row:
        """The same, with about half of the look-ups about entities that the output does not mention."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        return citing_row(rng, self.question(rng, world), world, self.split, strangers=STRANGERS)

    def namesakes(self, rng: random.Random) -> Row:
        """A tool output about entities that share words of their names, and the facts of each."""
        return namesakes_row(rng, self.worlds.draw_confusable(rng, 6))

    def refining(self, rng: random.Random) -> Row:
        """A question, a tool output and a careless refiner's answer."""
        world = self.worlds.draw_confusable(rng, rng.randint(3, 6))
        return refining_row(rng, self.question(rng, world), world, self.split)

    def question(self, rng: random.Random, world: World) -> Question:
        """A question about a small world, with two hops about half of the time."""
        facts = facts_of(world)
        subject = rng.choice([*world.people, *world.works, *world.firms])
        two = [*two_hops(facts, subject)] if rng.random() < 0.5 else []
        return ask(rng.choice(two or [*one_hops(facts, subject)]), self.split, rng)

    def _shelf(self, rng: random.Random, world: World) -> Shelf:
        passages = [*articles(world, rng)]
        return Shelf(passages, self._distraction(rng, passages))

    def _distract(self, rng: random.Random, shown: Sequence[Article], passages: Sequence[Article]) -> Sequence[Article]:
        distraction = self._distraction(rng, passages)
        return shown if distraction is None else distraction.added(shown)

    def _distraction(self, rng: random.Random, passages: Sequence[Article]) -> Distraction | None:
        """Of a share `distracted` of the rows. The others, and all if the share is 0, are as they were without it."""
        return Distraction(rng, passages) if self.distracted and rng.random() < self.distracted else None


def facts_of(world: World) -> Facts:
    """All facts in the passages of a world."""
    known: dict[str, dict[str, str]] = {}
    for article in articles(world, random.Random(0)):
        known.setdefault(article.about, {}).update(article.facts)
    return known
