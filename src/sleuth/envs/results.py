"""What a search found, as the policy reads it."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence

from sleuth.dialects import Dialect
from sleuth.types import Passage, Piece


def result_pieces(
    dialect: Dialect, found: Sequence[Sequence[Passage]], removed: Container[int] = ()
) -> Iterator[Piece]:
    """The passages of each query in pieces: one for all, unless each has its own budget. Those `removed`, numbered
    through all queries, are left out; the others keep their ranks."""
    lines = list(_lines(dialect, found, removed))
    if dialect.passage_tokens is None or dialect.results_tokens is not None or dialect.results_key is not None:
        text = dialect.between_queries.join(dialect.between.join(of_query) for of_query in lines)
        if dialect.results_key is not None:
            text = json.dumps({dialect.results_key: text}, ensure_ascii=False)
        if text:
            yield Piece(text=text, budget=dialect.results_tokens)
        return
    for at, of_query in enumerate(lines):
        if at:
            yield Piece(text=dialect.between_queries)
        for place, line in enumerate(of_query):
            if place:
                yield Piece(text=dialect.between)
            yield Piece(text=line, budget=dialect.passage_tokens)


def _lines(dialect: Dialect, found: Sequence[Sequence[Passage]], removed: Container[int]) -> Iterator[list[str]]:
    """One line a passage, query by query."""
    number = 0
    for passages in found:
        of_query = []
        for rank, passage in enumerate(passages, 1):
            if number not in removed:
                of_query.append(dialect.passage.format(rank=rank, title=passage.title, text=passage.text))
            number += 1
        yield of_query
