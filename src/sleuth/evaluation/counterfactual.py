"""How much likelier a piece of context makes a suffix: its log-probability with that context minus without it.

Thoughts, passages and cited words are all measured this way. The prefix that both rows of a pair share is computed once
(`sleuth.learn.prefix_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPair:
    """Two rows, `factual` and `counterfactual`, that end with the same `suffix_len` tokens, of which those that are
    `trained` in the rows are scored.

    `RowPair(factual=Row(tokens=(5, 2, 7, 3, 9), ...), counterfactual=Row(tokens=(5, 2, 3, 9), ...), suffix_len=1)`.
    """

    factual: Row
    counterfactual: Row
    suffix_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLogprobs:
    """The log-probability in nats of each token of a pair's suffix, in both rows; 0 where it is not scored."""

    factual: tuple[float, ...]
    counterfactual: tuple[float, ...]

    @property
    def gains(self) -> tuple[float, ...]:
        """Token by token, the factual log-probability minus the counterfactual one."""
        return tuple(one - other for one, other in zip(self.factual, self.counterfactual, strict=True))


def pair_logprobs(
    model: PreTrainedModel, pairs: Sequence[RowPair], *, budget: int, temperature: float = 1.0
) -> list[PairLogprobs]:
    """The log-probabilities of each pair, in passes over at most `budget` distinct tokens; without gradients."""
    rows = [row for pair in pairs for row in (pair.factual, pair.counterfactual)]  # in one call: pairs share prefixes
    values = row_logprobs(model, rows, budget=budget, temperature=temperature)
    return [
        PairLogprobs(factual=_last(one, pair.suffix_len), counterfactual=_last(other, pair.suffix_len))
        for pair, one, other in zip(pairs, values[::2], values[1::2], strict=True)
    ]


def suffix_row(before: Sequence[int], suffix: Sequence[int]) -> Row:
    """A row of which only the suffix is scored."""
    return Row(tokens=(*before, *suffix), trained=(*[False] * len(before), *[True] * len(suffix)))


def _last(values: Sequence[float], count: int) -> tuple[float, ...]:
    return tuple(values[len(values) - count :])
