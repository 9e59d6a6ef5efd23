"""The shapes of an update: lengths of prompts, queries, retrieved blocks and answers, and which rows share them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sleuth.learn.batch import Row

SMALL, LARGE = 4_096, 151_936
"""Vocabulary sizes: of the tables, and of Qwen3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`prompts` groups of `siblings` rows: a prompt, a query and a retrieved block if there are any, an answer.

    Lengths are in tokens. The first `sharers` siblings of a group wrote the same query and so read the same block; the
    others have their own. What the policy wrote, query and answer, is trained.
    """

    name: str
    prompts: int
    siblings: int
    prompt: int
    query: int = 0
    block: int = 0
    answer: int
    sharers: int = 0
    vocabulary: int = SMALL

    @property
    def rows(self) -> int:
        """The number of rows of one update."""
        return self.prompts * self.siblings

    @property
    def length(self) -> int:
        """Tokens of one row; all rows are equally long."""
        return self.prompt + self.query + self.block + self.answer

    def miniature(self) -> Shape:
        """The same structure with a few tokens per row, to load all code before the timing."""
        lengths = {"prompt": 6, "query": 2 if self.query else 0, "block": 4 if self.block else 0, "answer": 3}
        return replace(self, name=f"{self.name}/miniature", **lengths)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="search", prompts=8, siblings=8, prompt=200, answer=256),
        Shape(name="refiner", prompts=2, siblings=8, prompt=1_536, answer=256),
        Shape(name="multi_turn", prompts=8, siblings=8, prompt=200, query=24, block=400, answer=40, sharers=5),
        Shape(name="large_vocab", prompts=2, siblings=8, prompt=200, answer=128, vocabulary=LARGE),
    )
}


def draw_rows(shape: Shape, seed: int = 0) -> list[Row]:
    """The rows of one update: random tokens, and an advantage for each row that is never 0, so that none is skipped."""
    draw = random.Random(f"{shape.name} {seed}")
    return [row for _ in range(shape.prompts) for row in _group(shape, draw)]


def distinct_positions(rows: Sequence[Row]) -> list[int]:
    """The position of every distinct prefix's last token: the tokens to compute if each is computed once."""
    ordered = sorted(row.tokens for row in rows)
    positions = list(range(len(ordered[0])))
    for before, tokens in pairwise(ordered):
        positions += range(_common(before, tokens), len(tokens))
    return positions


def scored_tokens(rows: Sequence[Row]) -> int:
    """How many distinct prefixes end in a trained token: rows of the vocabulary projection that a loss needs."""
    scored, before, path = 0, (), [False]
    for row in sorted(rows, key=lambda row: row.tokens):
        shared = _common(before, row.tokens)
        scored += sum(path[max(1, shared) :])
        both = zip(path[:shared], row.trained[:shared], strict=True)
        before, path = row.tokens, [one or other for one, other in both] + list(row.trained[shared:])
    return scored + sum(path[1:])


def _group(shape: Shape, draw: random.Random) -> list[Row]:
    prompt = _tokens(shape, shape.prompt, draw)
    shared = _tokens(shape, shape.query + shape.block, draw)
    rows = []
    for sibling in range(shape.siblings):
        turn = shared if sibling < shape.sharers else _tokens(shape, shape.query + shape.block, draw)
        tokens = prompt + turn + _tokens(shape, shape.answer, draw)
        trained = (False,) * shape.prompt + (True,) * shape.query + (False,) * shape.block + (True,) * shape.answer
        advantage = draw.choice((-1, 1)) * draw.uniform(0.5, 1.5)
        rows.append(Row(tokens=tokens, trained=trained, advantage=advantage))
    return rows


def _tokens(shape: Shape, count: int, draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.randrange(shape.vocabulary) for _ in range(count))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
