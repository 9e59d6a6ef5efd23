"""The loss of a pack and its gradients, chunk by chunk: forward down the tree, backward as soon as a chunk has no more
descendants to compute.

A trunk is computed once, and its activations are kept while its branches are computed, each forward and backward by
itself. A branch reads keys, values and the last hidden state of its trunk as leaves; the gradients that accumulate
there are the start of the trunk's own backward pass. So values and gradients are those of the whole tree, each token is
computed once, and no more than one path of chunks is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.kernels.last_layer import select_outputs
from sleuth.kernels.vocabulary import embedding_in_place, logprobs_with_grad
from sleuth.learn.attention import ActivationBoundary, Branches
from sleuth.learn.logprobs import PassFigures, Targets, TokenLoss, head_of, hidden_states
from sleuth.learn.prefix_tree import Pack, gather_rows


def add_gradients(
    model: PreTrainedModel,
    pack: Pack,
    loss: TokenLoss,
    reference: Tensor | None = None,
    *,
    temperature: float = 1.0,
    budget: int,
    collect: Callable[[], None] = lambda: None,
) -> PassFigures:
    """Adds the gradients of `token_loss`, with the activations of at most `budget` tokens at once (see
    `subtree_chunks`), on a CPU. `collect` is called after each backward pass."""
    descent = _Descent(model, pack, loss, reference, temperature, collect)
    with embedding_in_place(model):
        for chunk in subtree_chunks(pack.tree.ends, budget):
            descent.enter(chunk)
        descent.leave_all()
    place = descent.targets.place
    return PassFigures(
        loss=descent.total,
        logprobs=place(descent.logprobs),
        entropy=place(descent.entropy),
        computed=descent.computed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trunk:
    """A chunk with descendants: what they read of it, and its own part of the loss, if it has any."""

    chunk: SubtreeChunk
    boundary: ActivationBoundary
    share: Tensor | None


class _Descent:
    def __init__(
        self,
        model: PreTrainedModel,
        pack: Pack,
        loss: TokenLoss,
        reference: Tensor | None,
        temperature: float,
        collect: Callable[[], None],
    ) -> None:
        self.model, self.tree, self.temperature, self.collect = model, pack.tree, temperature, collect
        self.targets = Targets(pack)
        self.logprob_grad = self.targets.logprob_grad(loss, reference)
        precision = torch.promote_types(model.dtype, torch.float32)
        self.total = torch.zeros((), dtype=precision)
        self.logprobs, self.entropy = (torch.zeros(len(self.targets), dtype=precision) for _ in range(2))
        self.computed = 0
        self.path: list[_Trunk] = []

    def enter(self, chunk: SubtreeChunk) -> None:
        """Forward; and backward, if it has no descendants."""
        while self.path and self.path[-1].chunk.end <= chunk.first:
            self._leave(self.path.pop())
        boundary = None if chunk.stop == chunk.end else ActivationBoundary()
        share = self._forward(chunk, boundary)
        if boundary is not None:
            self.path.append(_Trunk(chunk=chunk, boundary=boundary, share=share))
        elif share is not None:
            share.backward()
            self.collect()

    def leave_all(self) -> None:
        """Backward for the chunks that are left."""
        while self.path:
            self._leave(self.path.pop())

    def _leave(self, trunk: _Trunk) -> None:
        made, gradients = trunk.boundary.outputs_and_grads()
        if trunk.share is not None:
            made, gradients = [trunk.share, *made], [torch.ones_like(trunk.share), *gradients]
        if made:
            torch.autograd.backward(made, gradients)
            self.collect()

    def _forward(self, chunk: SubtreeChunk, boundary: ActivationBoundary | None) -> Tensor | None:
        """The chunk's part of the loss; None if it has no targets."""
        first, last = torch.searchsorted(self.targets.numbers, torch.tensor([chunk.first, chunk.stop])).tolist()
        before = self.targets.before[first:last] - chunk.first  # -1 or less: the last token above
        wanted = before[before >= 0]
        if boundary is not None:
            wanted = torch.cat([wanted, wanted.new_tensor([chunk.stop - chunk.first - 1])])
        elif first == last:
            return None
        part = self.tree.stretch(chunk.first, chunk.stop)
        self.computed += len(part)
        above = [trunk.boundary for trunk in self.path]
        sight = select_outputs(wanted.unique(), len(part))
        hidden = hidden_states(
            self.model, part, Branches(part, self.model.dtype, sight, above=above, boundary=boundary)
        )
        if boundary is not None:
            boundary.keep("hidden", hidden[-1:])
        if first == last:
            return None
        if above:
            hidden, before = torch.cat([above[-1]["hidden"], hidden]), before.clamp(min=-1) + 1
        share, logprobs, entropy = logprobs_with_grad(
            head_of(self.model),
            gather_rows(hidden, before),
            self.targets.tokens[first:last],
            self.temperature,
            lambda stretch, values: self.logprob_grad(slice(first + stretch.start, first + stretch.stop), values),
            also=None if self.targets.also is None else self.targets.also[first:last],
            in_place=True,
        )
        self.logprobs[first:last], self.entropy[first:last] = logprobs, entropy
        self.total += share.detach()
        return share


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtreeChunk:
    """The tokens [first, stop) of a tree. Descendants of the last one follow up to `end`, unless that is `stop`."""

    first: int
    stop: int
    end: int


def subtree_chunks(ends: Tensor, budget: int) -> Iterator[SubtreeChunk]:
    """Splits the tree whose subtrees end at `ends` (N) into chunks, depth-first.

    A chunk and its ancestors have at most `budget` tokens together, or it is a single path. Neighbouring subtrees share
    a chunk where they fit, in chunks of about the same size.
    """
    ends_of = ends.tolist()
    forests = [(0, len(ends_of), budget)]  # ranges of sibling subtrees, and room for them
    while forests:
        first, stop, room = forests.pop()
        end = _fitting(ends_of, first, stop, room)
        if end < stop:
            forests.append((end, stop, room))
        trunk = end
        if end - first > room:
            trunk = next((at for at in range(first, end) if ends_of[at] != end), end)
        yield SubtreeChunk(first=first, stop=trunk, end=end)
        if trunk < end:
            forests.append((trunk, end, room - (trunk - first)))


def _fitting(ends: Sequence[int], first: int, stop: int, room: int) -> int:
    """Where the next chunk of a forest ends: as few chunks as possible, of about equal sizes, each with at least one
    subtree."""
    share = (stop - first) / _least_chunks(ends, first, stop, room)
    end = ends[first]
    while end < stop and ends[end] - first <= room and (end + ends[end]) / 2 - first <= share:
        end = ends[end]
    return end


def _least_chunks(ends: Sequence[int], first: int, stop: int, room: int) -> int:
    count, begin, end = 1, first, ends[first]
    while end < stop:
        if ends[end] - begin > room:
            count, begin = count + 1, end
        end = ends[end]
    return count
