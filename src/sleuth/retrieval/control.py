"""Useless retrievers for control arms, which show whether search was learned."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sleuth.types import Passage, Retriever


class EmptyRetriever:
    """Never finds anything."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[] for _ in queries]


class ShuffledRetriever:
    """Returns the results of another question for each query: real passages about something else.

    The other question is a hash of the query, so equal queries get equal passages.
    """

    def __init__(self, inner: Retriever, questions: Sequence[str]) -> None:
        self.inner = inner
        self.questions = questions

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        others = [self.questions[zlib.crc32(query.encode()) % len(self.questions)] for query in queries]
        return await self.inner.search(others, k)
