"""The trained tokens of a pack, each once for all rows through it. Only this file shifts by one (a position predicts
the next token)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sleuth.kernels.vocabulary import LogprobGrad
from sleuth.learn.batch import Batch, Top
from sleuth.learn.prefix_tree import Pack, gather_rows

TokenLoss = Callable[[Batch, Tensor, Tensor | None], tuple[Tensor, dict[str, Tensor]]]
"""(rows, their log-probabilities (R, T), those of a reference model) -> a sum over tokens whose terms depend on one
token each, and per-token statistics (R, T) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFigures:
    """Results of a pass over a pack of R rows, without gradient: loss, `logprobs` and `entropy` of trained tokens (both
    (R, T), see `token_logprobs`) and the number of tokens `computed`."""

    loss: Tensor
    logprobs: Tensor
    entropy: Tensor
    computed: int


class Targets:
    """The M nodes of a pack's tree that are trained in some row and have a parent to predict them.

    `numbers` (M, ascending) are the nodes, `before` (M) their parents, `tokens` (M) their token ids, and `read`
    (ascending) the parents, each once. All are found on the host and sent to where the pack is.
    """

    def __init__(self, pack: Pack) -> None:
        self.pack, self._host = pack, pack.on_host
        tree = self._host.tree
        numbers = tree.nodes[self._host.rows.trained].unique()
        self._numbers = numbers[tree.parents[numbers] >= 0]
        before = tree.parents[self._numbers]
        found = (self._numbers, before, tree.tokens[self._numbers], before.unique())
        self.numbers, self.before, self.tokens, self.read = map(pack.send, found)
        top = pack.rows.teacher_top
        self._guided = None if top is None else pack.send(self._find_guided())
        self.also = None if top is None else top.tokens.flatten(0, 1)[self._guided]
        """(M, k) int64: the likeliest tokens to a teacher in the place of each target; None if nobody follows those."""

    def __len__(self) -> int:
        return len(self.numbers)

    def _find_guided(self) -> Tensor:
        """(M,) flat (R, T) indices: each target's token in a row through it that follows the teacher, if one does. A
        server's answers about one prefix may differ in their last bits, and so in their tokens."""
        rows, nodes = self._host.rows, self._host.tree.nodes.flatten()
        assert rows.guidance is not None
        flat = rows.trained.flatten().nonzero()[:, 0]
        flat = flat[(2 * nodes[flat] + (rows.guidance.flatten()[flat] == 0)).argsort(stable=True)]
        return flat[torch.searchsorted(nodes[flat].contiguous(), self._numbers)]

    def logprob_grad(self, loss: TokenLoss, reference: Tensor | None) -> LogprobGrad:
        """The loss and its derivatives for slices of the targets, summed over all rows through each of them.
        `reference` (R, T) is passed on to the loss."""
        rows, tree = self.pack.rows, self._host.tree
        flat = self._host.rows.trained.flatten().nonzero()[:, 0]  # flat (R, T) indices of the trained tokens
        nodes = tree.nodes.flatten()[flat]
        predicted = tree.parents[nodes] >= 0
        order = nodes[predicted].argsort(stable=True)
        flat, target = flat[predicted][order], torch.searchsorted(self._numbers, nodes[predicted][order])
        starts = torch.searchsorted(target, torch.arange(len(self) + 1)).tolist()  # of each target's indices in `flat`
        flat, target = map(self.pack.send, (flat, target))
        teacher = None if rows.teacher_top is None else rows.teacher_top.logprobs.flatten(0, 1)[self._guided]  # (M, k)

        def logprob_grad(part: slice, values: Tensor) -> tuple[Tensor, Tensor]:
            span = slice(starts[part.start], starts[part.stop])
            with torch.enable_grad():
                logprobs = values.detach().requires_grad_()
                of_rows = target[span] - part.start
                tokens = rows.tokens_at(flat[span])
                if teacher is None or self.also is None:
                    row_logprobs = gather_rows(logprobs, of_rows)
                else:
                    row_logprobs = gather_rows(logprobs[:, 0], of_rows)
                    top = Top(
                        tokens=self.also[part][of_rows][None],
                        logprobs=teacher[part][of_rows][None],
                        of_policy=gather_rows(logprobs[:, 1:], of_rows)[None],
                    )
                    tokens = replace(tokens, teacher_top=top)
                reference_logprobs = None if reference is None else reference.flatten()[flat[span]][None]
                share, _ = loss(tokens, row_logprobs[None], reference_logprobs)
                [derivative] = torch.autograd.grad(share, logprobs)
            return share.detach(), derivative

        return logprob_grad

    def place(self, values: Tensor) -> Tensor:
        """Values (M,) of the targets, gathered for every row through them: (R, T), 0 for untrained tokens."""
        nodes = self.pack.tree.nodes
        by_node = values.new_zeros(len(self.pack.tree)).index_put((self.numbers,), values)
        return gather_rows(by_node, nodes.flatten()).view(nodes.shape) * self.pack.rows.trained

    def place_top(self, values: Tensor) -> Tensor:
        """`place` of values (M, k) without gradient: (R, T, k)."""
        by_node = values.new_zeros(len(self.pack.tree), values.shape[1]).index_put((self.numbers,), values)
        return by_node[self.pack.tree.nodes] * self.pack.rows.trained[..., None]
