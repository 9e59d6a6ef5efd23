"""A few passages that can be searched: what a search engine would show first, without one."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sleuth.world.encyclopaedia import Article

SHOWN = 3
COMMON = frozenset({"The", "the", "of", "in", "was", "is"})


class Shelf:
    """Ranks passages by the words they share with a query, those of the title counting twice; equals in random
    order."""

    def __init__(self, articles: Sequence[Article]) -> None:
        self.articles = articles
        self._words = [(set(article.title.split()), set(_plain(article.text).split())) for article in articles]

    def search(self, query: str, rng: random.Random) -> list[Article]:
        """The first three passages for a query, best first."""
        wanted = set(query.split()) - COMMON
        order = rng.sample(range(len(self.articles)), len(self.articles))
        order.sort(key=lambda at: -2 * len(wanted & self._words[at][0]) - len(wanted & self._words[at][1]))
        return [self.articles[at] for at in order[:SHOWN]]


def _plain(text: str) -> str:
    return "".join(character for character in text if character not in ".,")
