"""The passages of a world as a corpus numbers them, and what they say of each entity."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from sleuth.world.encyclopaedia import Article, articles
from sleuth.world.facts import World
from sleuth.world.questions import Hop

REPORT_EVERY = 1000  # passages between two calls of `progress`


class Library(Mapping[str, Mapping[str, str]]):
    """Every passage once, in an order that keeps nothing of one entity together; the id of a passage is its place.

    As a mapping it is the `Facts` that questions are asked about: entity -> relation -> value.
    """

    def __init__(self, world: World, rng: random.Random, progress: Callable[[int], None] = lambda count: None) -> None:
        """Compose every passage, calling `progress` with their number so far."""
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
        """The passages about an entity, in the corpus's order."""
        return [self.articles[place] for place in self._places[entity]]

    def gold_id(self, hop: Hop) -> str:
        """The id of the one passage that states what the hop looks up."""
        [place] = [place for place in self._places[hop.subject] if hop.relation in self.articles[place].facts]
        return str(place)
