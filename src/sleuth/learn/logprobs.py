"""Log-probabilities of given tokens under a model, losses of them, and the gradients of these, chunk by chunk: forward
down the tree, backward as soon as a chunk has no more descendants to compute.

A trunk is computed once, and its activations are kept while its branches are computed, each forward and backward by
itself. A branch reads keys, values and the last hidden state of its trunk as leaves; the gradients that accumulate
there are the start of the trunk's own backward pass. So values and gradients are those of the whole tree, each token is
computed once, and no more than one path of chunks is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.kernels.fused import fused_forwards
from sleuth.kernels.layers import select_outputs, skip_unused_outputs
from sleuth.kernels.matmul import onednn_linears, replaced_forwards
from sleuth.kernels.vocabulary import (
    Head,
    LogprobGrad,
    embedding_in_place,
    logprobs_with_grad,
    target_logprobs,
    top_logprobs,
)
from sleuth.learn.attention import TREE_ATTENTION, ActivationBoundary, Branches, Observe
from sleuth.learn.batch import Batch, Row, Top, collate
from sleuth.learn.models import check_family, plain_reason
from sleuth.learn.prefix_tree import Pack, PrefixTree, gather_rows, pack, padded_packs

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
        self._places = None if top is None else pack.send(self.find_places())
        self.also = None if top is None else top.tokens.flatten(0, 1)[self._places]
        """(M, k) int64: the likeliest tokens to a teacher in the place of each target; None if nobody follows those."""

    def __len__(self) -> int:
        return len(self.numbers)

    def find_places(self) -> Tensor:
        """(M,) flat (R, T) indices: each target's token in one of the rows through it."""
        nodes = self._host.tree.nodes.flatten()
        flat = self._host.rows.trained.flatten().nonzero()[:, 0]
        flat = flat[nodes[flat].argsort(stable=True)]
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
        teacher = None if rows.teacher_top is None else rows.teacher_top.logprobs.flatten(0, 1)[self._places]  # (M, k)

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


def token_logprobs(
    model: PreTrainedModel, pack: Pack, *, temperature: float = 1.0, observe: Observe | None = None
) -> tuple[Tensor, Tensor]:
    """Natural-log probability of each trained token given those before it, and the entropy of its distribution.

    Both are (R, T) fp32 for the R rows of the pack; index t belongs to token t, and both are 0 for untrained tokens and
    at t = 0. The entropy, in nats, has no gradient. The softmax is fp32, at `temperature`.

    Each distinct token is computed once, and the vocabulary projection only at tokens that predict a trained one; rows
    that share a token share its value, and their gradients add up. A model with other layers than attention, or other
    logits than its output embeddings times its last hidden state, computes each row whole (see `plain_reason`).
    `observe`, if given, is called in each layer's attention.
    """
    targets = Targets(pack)
    hidden = _predicting(model, targets, observe)  # (M, width)
    logprobs, entropy = target_logprobs(head_of(model), hidden, targets.tokens, temperature)  # (M,), (M,)
    return targets.place(logprobs), targets.place(entropy)


def token_loss(
    model: PreTrainedModel, pack: Pack, loss: TokenLoss, reference: Tensor | None = None, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """A pack's loss, a sum over its trained tokens, and, without gradient, the results of `token_logprobs`.

    Equals `loss(pack.rows, logprobs, reference)` of these `logprobs`, with less work (`logprobs_with_grad`).
    `reference` is (R, T).
    """
    targets = Targets(pack)
    hidden = _predicting(model, targets)  # (M, width)
    logprob_grad = targets.logprob_grad(loss, reference)
    share, logprobs, entropy = logprobs_with_grad(
        head_of(model), hidden, targets.tokens, temperature, logprob_grad, also=targets.also
    )
    return share, targets.place(logprobs), targets.place(entropy)


@torch.no_grad()
def token_top_logprobs(
    model: PreTrainedModel, pack: Pack, top_k: int, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Natural-log probabilities (R, T) as `token_logprobs`, the `top_k` likeliest tokens in each place and theirs:
    (R, T, top_k) each."""
    targets = Targets(pack)
    hidden = _predicting(model, targets)  # (M, width)
    logprobs, tokens, of_tokens = top_logprobs(head_of(model), hidden, targets.tokens, temperature, top_k)
    return targets.place(logprobs), targets.place_top(tokens), targets.place_top(of_tokens)


@torch.no_grad()
def token_hits(model: PreTrainedModel, pack: Pack) -> Tensor:
    """(R, T) bool: whether a trained token is the model's most likely one; otherwise as `token_logprobs`."""
    targets = Targets(pack)
    likeliest = head_of(model)(_predicting(model, targets)).argmax(dim=-1)
    return targets.place(likeliest == targets.tokens)


def _predicting(model: PreTrainedModel, targets: Targets, observe: Observe | None = None) -> Tensor:
    """What `head_of` the model makes logits of: the hidden states (M, width) that predict the targets, or, the plain
    way, these logits (M, V) themselves, of rows padded on the right: a causal model sees no padding there."""
    if is_plain(model):
        tokens = targets.pack.rows.tokens  # (R, T)
        places = targets.find_places() - 1
        columns, at = (places % tokens.shape[1]).unique(return_inverse=True)  # (K), (M)
        chosen = targets.pack.send(places // tokens.shape[1] * len(columns) + at)
        whole = model(input_ids=tokens, use_cache=False, logits_to_keep=targets.pack.send(columns))
        return gather_rows(whole.logits.flatten(0, 1), chosen)
    tree = targets.pack.tree
    outputs = select_outputs(targets.read, len(tree))
    branches = Branches(tree, model.dtype, outputs, observe=observe)
    return gather_rows(hidden_states(model, tree, branches), targets.before)


def hidden_states(model: PreTrainedModel, tree: PrefixTree, branches: Branches) -> Tensor:
    """The last hidden state (N, width) of a tree's tokens."""
    with tree_attention(model):
        body = model.base_model(
            input_ids=tree.tokens[None], position_ids=tree.positions[None], use_cache=False, branches=branches
        )
    return body.last_hidden_state[0]


def is_plain(model: PreTrainedModel) -> bool:
    """Whether rows of this model are computed whole, by transformers' own forward."""
    return plain_reason(model.config) is not None


def packer_of(model: PreTrainedModel) -> Callable[..., list[Pack]]:
    """The function that cuts a batch into passes of this model: `pack`, or `padded_packs` the plain way."""
    return padded_packs if is_plain(model) else pack


def head_of(model: PreTrainedModel) -> Head:
    """The projection onto the vocabulary; the plain way nothing is left of it."""
    return nn.Identity() if is_plain(model) else cast(nn.Linear, model.get_output_embeddings())


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """In this context the model uses tree attention, skips unused outputs of the last layer, and has faster linear
    layers, norms and gates. A model that computes the plain way stays as it is."""
    before = model.config._attn_implementation
    if before == TREE_ATTENTION or is_plain(model):  # nested, or nothing to replace
        yield
        return
    model.config._attn_implementation = TREE_ATTENTION
    try:
        faster = replaced_forwards(fused_forwards(model))
        with skip_unused_outputs(model, "branches"), onednn_linears(model), faster:
            yield
    finally:
        model.config._attn_implementation = before


@torch.no_grad()
def row_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], *, budget: int, temperature: float = 1.0
) -> list[list[float]]:
    """The natural-log probability of each token of each row given those before it; 0.0 for untrained tokens.

    Runs in passes over at most `budget` distinct tokens, common prefixes once. No gradient. Raises SleuthError if the
    model's family is not one that works.
    """
    check_family(model.config)
    if not any(any(row.trained[1:]) for row in rows):
        return [[0.0] * len(row.tokens) for row in rows]
    by_row: dict[int, list[float]] = {}
    for part in packer_of(model)(collate(rows), budget):
        values, _ = token_logprobs(model, part.to(model.device), temperature=temperature)
        for row, logprobs in zip(part.members, values.tolist(), strict=True):
            by_row[row] = logprobs[: len(rows[row].tokens)]
    return [by_row[row] for row in range(len(rows))]


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
        loss=descent.total, logprobs=place(descent.logprobs), entropy=place(descent.entropy), computed=descent.computed
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
