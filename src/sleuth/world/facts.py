"""The entities of a world and the relations between them, drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.types import SleuthError
from sleuth.world import names
from sleuth.world.names import SPLITS, Words, split_of, words_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person.

    `Person(name="Ada Fenwick", birthplace="Tamton", birth_year="1874", profession="potter", employer="Kelholt Mills")`.
    """

    name: str
    birthplace: str
    birth_year: str
    profession: str
    employer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`Work(name="The Silent Harbor", kind="novel", author="Celia Fenwick", year="1901")`."""

    name: str
    kind: str
    author: str
    year: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Firm:
    """`Firm(name="Kelholt Mills", founder="Ivolo Marsberg", seat="Tamton")`."""

    name: str
    founder: str
    seat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Town:
    """`Town(name="Tamton", region="Osmark")`."""

    name: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fair:
    """A fair, whose passage mentions people without being about them."""

    town: str
    year: str
    visitors: tuple[str, str]

    @property
    def name(self) -> str:
        return f"{self.town} Fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All facts. Names are unique within a kind; works and firms of the test split belong to people of that split."""

    people: dict[str, Person]
    works: dict[str, Work]
    firms: dict[str, Firm]
    towns: dict[str, Town]
    fairs: tuple[Fair, ...]


MINIMUM_PEOPLE, MAXIMUM_PEOPLE = 200, 200_000


def make_world(seed: int, people: int) -> World:
    """A world of `people` people, half as many works, a tenth as many firms and a quarter as many fairs."""
    if not MINIMUM_PEOPLE <= people <= MAXIMUM_PEOPLE:
        raise SleuthError(f"people={people}: a world has from {MINIMUM_PEOPLE} to {MAXIMUM_PEOPLE:,} people")
    rng = random.Random(f"world {seed} {people}")
    words = words_for(people)
    return draw_world(
        rng,
        words,
        people=rng.sample(person_names(words), people),
        firms=rng.sample(firm_names(words, people // 10), people // 10),
        works=rng.sample(work_names(words, people // 2), people // 2),
        fairs=people // 4,
    )


def draw_world(
    rng: random.Random,
    words: Words,
    *,
    people: Sequence[str],
    firms: Sequence[str],
    works: Sequence[str],
    fairs: int,
) -> World:
    """A world with random facts about the given names.

    Works and firms get authors, founders and employees of their own split, so that both hops of a question about a
    held-out name are held out.
    """
    people_of = {split: [name for name in people if split_of(name) == split] or people for split in SPLITS}
    firms_of = {split: [name for name in firms if split_of(name) == split] or firms for split in SPLITS}

    def year() -> str:
        return str(rng.choice(names.YEARS))

    def person(name: str) -> Person:
        return Person(
            name=name,
            birthplace=rng.choice(words.places),
            birth_year=year(),
            profession=rng.choice(names.PROFESSIONS),
            employer=rng.choice(firms_of[split_of(name)]),
        )

    def work(name: str) -> Work:
        return Work(name=name, kind=rng.choice(names.KINDS), author=rng.choice(people_of[split_of(name)]), year=year())

    def firm(name: str) -> Firm:
        return Firm(name=name, founder=rng.choice(people_of[split_of(name)]), seat=rng.choice(words.places))

    def fair() -> Fair:
        return Fair(town=rng.choice(words.places), year=year(), visitors=(rng.choice(people), rng.choice(people)))

    return World(
        people={name: person(name) for name in people},
        works={name: work(name) for name in works},
        firms={name: firm(name) for name in firms},
        towns={name: Town(name=name, region=rng.choice(names.REGIONS)) for name in words.places},
        fairs=tuple(fair() for _ in range(fairs)),
    )


def person_names(words: Words) -> list[str]:
    """All combinations of a given name and a family name."""
    return [f"{first} {family}" for first in words.first for family in words.family]


def firm_names(words: Words, count: int) -> list[str]:
    """Names of firms, which contain family names: `Fenwick Mills` is easily confused with `Celia Fenwick`."""
    pairs = [f"{family} {kind}" for kind in names.FIRMS for family in words.family]
    return _enough(pairs, words, count)


def work_names(words: Words, count: int) -> list[str]:
    """Titles of works: `The Silent Harbor`."""
    pairs = [f"The {adjective} {noun}" for adjective in names.ADJECTIVES for noun in names.NOUNS]
    return _enough(pairs, words, count)


def _enough(pairs: list[str], words: Words, count: int) -> list[str]:
    """The pairs; combined with towns if there are fewer than twice `count`."""
    return pairs if len(pairs) >= 2 * count else [f"{pair} of {place}" for pair in pairs for place in words.places]
