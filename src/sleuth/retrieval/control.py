"""Retrievers that must not help: the control arms that show it is the search that was learned."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sleuth.types import Passage, Retriever


class EmptyRetriever:
    """Finds nothing, ever."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[] for _ in queries]


class ShuffledRetriever:
    """Gives each query the passages of another question: real results, about something else.

    Which question stands in is a function of the query alone, so equal queries get equal passages.
    """

    def __init__(self, inner: Retriever, questions: Sequence[str]) -> None:
        self.inner = inner
        self.questions = questions

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        others = [self.questions[zlib.crc32(query.encode()) % len(self.questions)] for query in queries]
        return await self.inner.search(others, k)
