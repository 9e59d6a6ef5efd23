"""The passages of a world, numbered as in its corpus, and the facts that they state."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sleuth.world.facts import World
from sleuth.world.questions import Hop
from sleuth.world.wording import PASSAGES

REPORT_EVERY = 1000  # passages between two calls of `progress`


class Library(Mapping[str, Mapping[str, str]]):
    """All passages of a world in random order; the id of a passage is its index. As a mapping it is the `Facts` of the
    world: entity -> relation -> value."""

    def __init__(self, world: World, rng: random.Random, progress: Callable[[int], None] = lambda count: None) -> None:
        """Generates all passages; calls `progress` with their number every `REPORT_EVERY` passages."""
        self.articles: list[Article] = []
        for count, article in enumerate(articles(world, rng), start=1):
            self.articles.append(article)
            if count % REPORT_EVERY == 0:
                progress(count)
        rng.shuffle(self.articles)
        self._places: dict[str, list[int]] = {}
        for place, article in enumerate(self.articles):
            self._places.setdefault(article.about, []).append(place)

    def __getitem__(self, entity: str) -> Mapping[str, str]:
        return {
            relation: value for place in self._places[entity] for relation, value in self.articles[place].facts.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def about(self, entity: str) -> list[Article]:
        """The passages about an entity, in the order of the corpus."""
        return [self.articles[place] for place in self._places[entity]]

    def gold_id(self, hop: Hop) -> str:
        """The id of the one passage that states the fact of a hop."""
        [place] = [place for place in self._places[hop.subject] if hop.relation in self.articles[place].facts]
        return str(place)


TOP_K = 3
ENDING_SENTENCES, ENDING_WORDS = (1, 3), (3, 12)  # fewest and most
STOP_WORDS = frozenset({"The", "the", "of", "in", "was", "is"})


class Shelf:
    """Ranks passages by the number of words shared with a query; words of the title count twice, ties are random. With
    a `distraction`, the passages that are found get endings."""

    def __init__(self, articles: Sequence[Article], distraction: Distraction | None = None) -> None:
        self.articles = articles
        self.distraction = distraction
        self._words = [(set(article.title.split()), set(_plain(article.text).split())) for article in articles]

    def search(self, query: str, rng: random.Random) -> list[Article]:
        """The first three passages for a query, best first."""
        words = set(query.split()) - STOP_WORDS
        order = rng.sample(range(len(self.articles)), len(self.articles))
        order.sort(key=lambda at: -2 * len(words & self._words[at][0]) - len(words & self._words[at][1]))
        found = [self.articles[at] for at in order[:TOP_K]]
        return found if self.distraction is None else self.distraction.added(found)


class Distraction:
    """Appends endings beside the point to passages: sentences of others of `articles`, their words in any order, or one
    of these again and again.

    All are harmless. Instructions are left out: a model that learns to read past some has read them all.
    """

    def __init__(self, rng: random.Random, articles: Sequence[Article]) -> None:
        self._rng = rng
        self._articles = articles

    def added(self, shown: Sequence[Article]) -> list[Article]:
        """The passages, each with an ending."""
        return [replace(article, text=f"{article.text} {self._ending(article)}") for article in shown]

    def _ending(self, article: Article) -> str:
        others = [other.text for other in self._articles if other.title != article.title] or [article.text]
        if (form := self._rng.randrange(3)) == 0:
            return " ".join(self._rng.choices(others, k=self._rng.randint(*ENDING_SENTENCES)))
        words, count = re.findall(r"\w+", " ".join(self._rng.choices(others, k=3))), self._rng.randint(*ENDING_WORDS)
        return " ".join([self._rng.choice(words)] * count if form == 1 else self._rng.choices(words, k=count))


def _plain(text: str) -> str:
    return "".join(character for character in text if character not in ".,")


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A passage and its facts about the entity `about`: relation -> value.

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
    """Yields all passages, entity by entity: two for each person, one for each work, firm, town and fair."""
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
    """The number of passages that `articles` yields."""
    return 2 * len(world.people) + len(world.works) + len(world.firms) + len(world.towns) + len(world.fairs)


def _article(rng: random.Random, form: str, about: str, facts: Mapping[str, str], **slots: str) -> Article:
    return Article(title=about, text=rng.choice(PASSAGES[form]).format(**slots), about=about, facts=facts)
