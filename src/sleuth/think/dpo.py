"""Direct preference optimisation: of two continuations of one prefix, the better one is to become likelier than the
worse one, as measured from where the policy began.

A batch of P pairs has 2 P rows: row 2 i is the chosen one of pair i, row 2 i + 1 the rejected one. The loss is no sum
over rows, so a pair is never parted (`pack(..., together=PAIR)`); what both share at their beginning is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.losses import Objective
from sleuth.learn.policy import Update

PAIR = 2
"""Rows of a pair."""


def dpo_loss(margins: Tensor, weights: Tensor) -> Tensor:
    """-sum w log sigmoid(margin), over P pairs; both (P,). DPO, arXiv:2305.18290; online, on pairs that are drawn from
    the policy as it learns and judged: arXiv:2402.04792.

    Departure: a margin may come from continuations that the policy never wrote (a source's, a teacher's). The loss
    needs no log-probability of who wrote them, so nothing is to be corrected (arXiv:2601.21343 does the same).
    """
    return -(logsigmoid(margins) * weights).sum()


def implicit_margins(logprobs: Tensor, reference: Tensor, *, beta: float) -> Tensor:
    """beta ((log p(c) - log ref(c)) - (log p(r) - log ref(r))) of each pair, (P,).

    `logprobs` and `reference` are (2 P, T), 0 where no token is trained: log-probabilities are summed over a row, not
    averaged, as in the paper, so that a longer continuation can have a larger margin.
    """
    gains = (logprobs - reference).sum(dim=1).view(-1, PAIR)  # (P, 2): chosen, rejected
    return beta * (gains[:, 0] - gains[:, 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceUpdate(Update):
    """What one step on pairs did, with the means over the pairs of the statistics of `PreferenceLoss`."""

    margin: float
    accuracy: float
    chosen_gain: float
    rejected_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss(Objective):
    """Direct preference optimisation on the pairs of `pair_batch`, against the policy's reference model. Both rows of a
    pair are computed in one pass, whatever their length.

    `margin` is the implicit reward of the chosen one over the rejected one, `accuracy` whether it is above 0;
    `chosen_gain` and `rejected_gain` are how much likelier, in nats, each has become than it was to the reference. A
    step with rising margins and falling `chosen_gain` pushes both down, which is how preference losses go wrong.
    """

    beta: float

    reads_reference: ClassVar[bool] = True
    rows_together: ClassVar[int] = PAIR

    @property
    def is_sum_over_tokens(self) -> bool:
        return False

    def __call__(self, rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of the loss of whole pairs, and statistics of each pair, repeated at all of its tokens. All
        (2 P, T)."""
        if reference is None:
            raise ValueError("preferences are measured from a reference model, and the policy has none")
        margins = implicit_margins(logprobs, reference, beta=self.beta)  # (P,)
        weights = rows.weights.sum(dim=1).view(-1, PAIR).sum(dim=1)  # (P,): its rows' shares of the step
        gains = (logprobs - reference).detach().sum(dim=1).view(-1, PAIR)  # (P, 2)
        of_pairs = {
            "margin": margins.detach(),
            "accuracy": (margins.detach() > 0).float(),
            "chosen_gain": gains[:, 0],
            "rejected_gain": gains[:, 1],
        }
        statistics = {
            name: values.repeat_interleave(PAIR)[:, None].expand_as(logprobs) for name, values in of_pairs.items()
        }
        return dpo_loss(margins, weights), statistics


def pair_batch(pairs: Sequence[tuple[Row, Row]]) -> Batch:
    """(chosen, rejected) of P pairs as the batch of one step. Every row counts the same, however long, so that every
    pair has 1 / P of the loss. Raises ValueError for a row of which no token is trained: nothing could be preferred."""
    rows = [row for pair in pairs for row in pair]
    if not all(any(row.trained[1:]) for row in rows):
        raise ValueError("a row of a pair has no token that is trained")
    return collate(rows, normalise="sequence")
