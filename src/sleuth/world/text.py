"""Supervised training text for the tiny base model.

A row is a list of pieces, whose author decides their weight in the loss: 1 for `teacher`, `source_weight` for `source`,
0 for the rest. Every row has a small world with facts of its own, so that nothing can be memorised; names and wordings
are those of one split. The families have the kinds of rows: see `sleuth.search.world` and
`sleuth.cite.world_citing`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from sleuth import family
from sleuth.types import Piece
from sleuth.world import names
from sleuth.world.facts import World, draw_world, firm_names, person_names, work_names
from sleuth.world.library import Article, Distraction, Shelf, articles
from sleuth.world.names import Split, split_of, words_for
from sleuth.world.questions import Facts, Question, ask, one_hops, two_hops
from sleuth.world.tokens import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.recipe.data import WorldTextRecipe

Row = list[Piece]
"""A row of training text; loss weights by author: 1 for `teacher`, `source_weight` for `source`, 0 for `env`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldText:
    """A kind of row. `vocabulary` returns texts whose words, and tags which, are tokens of a model that begins with
    such rows."""

    write: Callable[[TextRows, random.Random], Row]
    shows_passages: bool = False
    vocabulary: Callable[[], tuple[Iterable[str], Iterable[str]]] | None = None


def world_text(kind: str) -> WorldText:
    """The kind of row of this name."""
    return family.table("texts", kind)


def make_text_tokenizer(data: WorldTextRecipe) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that begins with these texts."""
    added = {known: None for kind in data.mix if (known := world_text(kind).vocabulary) is not None}
    texts, tags = zip(*(known() for known in added), strict=True) if added else ((), ())
    return make_tokenizer(data.people, chain.from_iterable(texts), chain.from_iterable(tags))


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
        mix: Mapping[str, float],
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

    def row(self, index: int) -> Row:
        """Row number `index`; there is no last one."""
        rng = random.Random(f"text {self.key} {index}")
        [kind] = rng.choices(self.kinds, self.shares)
        return world_text(kind).write(self, rng)

    def question(self, rng: random.Random, world: World) -> Question:
        """A question about a small world, with two hops about half of the time."""
        facts = facts_of(world)
        subject = rng.choice([*world.people, *world.works, *world.firms])
        two = [*two_hops(facts, subject)] if rng.random() < 0.5 else []
        return ask(rng.choice(two or [*one_hops(facts, subject)]), self.split, rng)

    def shelf(self, rng: random.Random, world: World) -> Shelf:
        """The passages of a small world, some of which may end beside the point."""
        passages = [*articles(world, rng)]
        return Shelf(passages, self._distraction(rng, passages))

    def distract(self, rng: random.Random, shown: Sequence[Article], passages: Sequence[Article]) -> Sequence[Article]:
        """The passages `shown`, which may end beside the point, in parts of all `passages`."""
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
