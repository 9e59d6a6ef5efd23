"""The tokens of a pack that a loss looks at, once for all rows that pass through them. The shift by one (a position
predicts the next token) lives in this file alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.learn.batch import Batch
from sleuth.learn.prefix_tree import Pack
from sleuth.learn.vocabulary import LogprobGrad

TokenLoss = Callable[[Batch, Tensor, Tensor | None], tuple[Tensor, dict[str, Tensor]]]
"""(rows, their log-probabilities (R, T), those of a reference model) -> a sum over tokens, in which none is looked at
beside another; and statistics of each token, (R, T) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFigures:
    """What a pass over a pack of R rows tells, without gradient: its loss, `logprobs` and `entropy` of trained tokens
    (both (R, T), see `token_logprobs`), and how many tokens it `computed`."""

    loss: Tensor
    logprobs: Tensor
    entropy: Tensor
    computed: int


class Targets:
    """The M tokens of a pack's tree that are trained in any row, and that another one predicts.

    `numbers` (M, rising) count in the tree, `before` (M) are the tokens that predict them, `tokens` (M) their ids.
    """

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        numbers = pack.tree.places[pack.rows.trained].unique()
        self.numbers = numbers[pack.tree.parents[numbers] >= 0]
        self.before = pack.tree.parents[self.numbers]
        self.tokens = pack.tree.tokens[self.numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    def logprob_grad(self, loss: TokenLoss, reference: Tensor | None) -> LogprobGrad:
        """How they pull, each in all rows that pass through it. `reference` (R, T) is handed on to the loss."""
        rows, tree = self.pack.rows, self.pack.tree
        places = rows.trained.flatten().nonzero()[:, 0]  # of the trained tokens, through the rows
        of_tree = tree.places.flatten()[places]
        predicted = tree.parents[of_tree] >= 0
        order = of_tree[predicted].argsort(stable=True)
        places, own = places[predicted][order], torch.searchsorted(self.numbers, of_tree[predicted][order])
        counts = torch.arange(len(self) + 1, device=own.device)
        starts = torch.searchsorted(own, counts).tolist()  # where each target's places begin

        def logprob_grad(part: slice, values: Tensor) -> tuple[Tensor, Tensor]:
            stretch = slice(starts[part.start], starts[part.stop])
            with torch.enable_grad():
                of_part = values.detach().requires_grad_()
                of_rows = of_part.index_select(0, own[stretch] - part.start)
                theirs = None if reference is None else reference.flatten()[places[stretch]][None]
                share, _ = loss(rows.tokens_at(places[stretch]), of_rows[None], theirs)
                [derivative] = torch.autograd.grad(share, of_part)
            return share.detach(), derivative

        return logprob_grad

    def place(self, values: Tensor) -> Tensor:
        """Values (M,) of the targets, gathered for every row that passes through them: (R, T), 0 where nothing is
        trained."""
        places = self.pack.tree.places
        of_tree = values.new_zeros(len(self.pack.tree)).index_put((self.numbers,), values)
        # Not of_tree[places]: with several threads its backward pass adds up in an order that changes from run to run.
        return of_tree.index_select(0, places.flatten()).view(places.shape) * self.pack.rows.trained
