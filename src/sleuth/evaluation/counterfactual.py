"""One question for thoughts, passages and cited words: how much likelier do they make what follows?

The story is told twice, with them and without, and the same last words are read under both. What the two stories share
at their beginning is computed once (`sleuth.learn.prefix_tree`), however often it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """A story `as_it_is` and told `otherwise`, as rows that end with the same `behind` tokens; those of them that are
    `trained` in the rows are read.

    `Telling(as_it_is=Row(tokens=(5, 2, 7, 3, 9), ...), otherwise=Row(tokens=(5, 2, 3, 9), ...), behind=1)`.
    """

    as_it_is: Row
    otherwise: Row
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The log-probability in nats of each token of a telling's end, in both stories; 0 where it is not read."""

    as_it_is: tuple[float, ...]
    otherwise: tuple[float, ...]

    @property
    def gained(self) -> tuple[float, ...]:
        """Token by token, how much likelier it is as it is."""
        return tuple(one - other for one, other in zip(self.as_it_is, self.otherwise, strict=True))


def read_twice(
    model: PreTrainedModel, tellings: Sequence[Telling], *, budget: int, temperature: float = 1.0
) -> list[Read]:
    """Both stories of each telling, in passes over at most `budget` distinct tokens; no gradient."""
    rows = [row for telling in tellings for row in (telling.as_it_is, telling.otherwise)]
    values = iter(row_logprobs(model, rows, budget=budget, temperature=temperature))
    return [
        Read(as_it_is=_last(next(values), telling.behind), otherwise=_last(next(values), telling.behind))
        for telling in tellings
    ]


def suffix_row(before: Sequence[int], suffix: Sequence[int]) -> Row:
    """A row of which the suffix is read."""
    return Row(tokens=(*before, *suffix), trained=(*[False] * len(before), *[True] * len(suffix)))


def _last(values: Sequence[float], count: int) -> tuple[float, ...]:
    return tuple(values[len(values) - count :])
