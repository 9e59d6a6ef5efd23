"""A world as an encyclopaedia: passages in the layout of wiki-18, each saying some facts in one of several wordings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sleuth.world.facts import World
from sleuth.world.wording import PASSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A passage with what it says: `facts` maps a relation to its value, for the entity `about`.

    `Article(title="Tamton", text="Tamton is a town in Osmark.", about="Tamton", facts={"region": "Osmark"})`.
    """

    title: str
    text: str
    about: str
    facts: Mapping[str, str]

    @property
    def contents(self) -> str:
        """`"Title"` on a line of its own, then the text."""
        return f'"{self.title}"\n{self.text}'


def articles(world: World, rng: random.Random) -> Iterator[Article]:
    """Every passage of the world, entity by entity: two for a person, one for each work, firm and town, one a fair."""
    for person in world.people.values():
        life = {"birthplace": person.birthplace, "birth_year": person.birth_year}
        career = {"profession": person.profession, "employer": person.employer}
        yield _article(rng, "life", person.name, life, person=person.name, **life)
        yield _article(rng, "career", person.name, career, person=person.name, **career)
    for work in world.works.values():
        facts = {"author": work.author, "year": work.year}
        yield _article(rng, "work", work.name, facts, work=work.name, kind=work.kind, **facts)
    for firm in world.firms.values():
        facts = {"founder": firm.founder, "seat": firm.seat}
        yield _article(rng, "firm", firm.name, facts, firm=firm.name, **facts)
    for town in world.towns.values():
        yield _article(rng, "town", town.name, {"region": town.region}, town=town.name, region=town.region)
    for fair in world.fairs:
        visitor, other = fair.visitors
        yield _article(rng, "fair", fair.name, {}, town=fair.town, year=fair.year, visitor=visitor, other=other)


def count_articles(world: World) -> int:
    """How many passages `articles` will give."""
    return 2 * len(world.people) + len(world.works) + len(world.firms) + len(world.towns) + len(world.fairs)


def _article(rng: random.Random, form: str, about: str, facts: Mapping[str, str], **slots: str) -> Article:
    return Article(title=about, text=rng.choice(PASSAGES[form]).format(**slots), about=about, facts=facts)
