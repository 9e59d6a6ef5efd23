"""Log-probabilities of given tokens. The shift by one (a position predicts the next token) lives in this file alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.learn.attention import TREE_ATTENTION, Branches
from sleuth.learn.batch import Batch
from sleuth.learn.last_layer import sparing_last_layer, where_wanted
from sleuth.learn.prefix_tree import Pack, PrefixTree
from sleuth.learn.products import replaced_forwards, swift_products
from sleuth.learn.swift_layers import swift_forwards
from sleuth.learn.vocabulary import Pull, chosen_logprobs, pulled_logprobs

TokenLoss = Callable[[Batch, Tensor, Tensor | None], tuple[Tensor, dict[str, Tensor]]]
"""(rows, their log-probabilities (R, T), those of a reference model) -> a sum over tokens, in which none is looked at
beside another; and statistics of each token, (R, T) by name."""


def token_logprobs(model: PreTrainedModel, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Natural-log probability of each trained token given those before it, and the entropy of its distribution.

    Both are (R, T) fp32 for the R rows of the pack, index t speaks of token t, and both are 0 where no token is trained
    and at t = 0, which nothing predicts. The entropy, in nats, carries no gradient. The softmax is taken in fp32 at
    `temperature`.

    Each distinct token is computed once, and the vocabulary projection only where a trained token is predicted; rows
    that share a token share its value, and their gradients add up on it. The model must be a decoder with a replaceable
    attention whose logits are its output embeddings times its last hidden state (Qwen, Llama and kin; no soft-capped or
    rescaled logits).
    """
    tree, trained = pack.tree, pack.rows.trained
    hidden, needed = _predicting(model, tree, trained)  # (M, width), (M,)
    of_needed = chosen_logprobs(_head(model), hidden, tree.tokens[needed], temperature)  # (M,), (M,)
    logprobs, entropy = (_place(values, needed, tree, trained) for values in of_needed)
    return logprobs, entropy


def token_loss(
    model: PreTrainedModel, pack: Pack, loss: TokenLoss, reference: Tensor | None = None, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a pack's trained tokens, to which each adds by itself, and, without gradient, what `token_logprobs`
    tells.

    Value and gradient are those of `loss(pack.rows, logprobs, reference)` on what `token_logprobs` tells, with less
    work (`pulled_logprobs`). `reference` is (R, T) and handed on.
    """
    tree, trained = pack.tree, pack.rows.trained
    hidden, needed = _predicting(model, tree, trained)  # (M, width), (M,)
    pull = _pull(pack, needed, loss, reference)
    share, *of_needed = pulled_logprobs(_head(model), hidden, tree.tokens[needed], temperature, pull)
    logprobs, entropy = (_place(values, needed, tree, trained) for values in of_needed)
    return share, logprobs, entropy


def _pull(pack: Pack, needed: Tensor, loss: TokenLoss, reference: Tensor | None) -> Pull:
    """How the M needed tokens of the tree pull, each in all rows that pass through it."""
    places = pack.rows.trained.flatten().nonzero()[:, 0]  # of the trained tokens, through the rows
    of_tree = pack.tree.places.flatten()[places]
    predicted = pack.tree.parents[of_tree] >= 0
    order = of_tree[predicted].argsort(stable=True)
    places, numbers = places[predicted][order], torch.searchsorted(needed, of_tree[predicted][order])
    counts = torch.arange(len(needed) + 1, device=needed.device)
    starts = torch.searchsorted(numbers, counts).tolist()  # where each needed token's places begin

    def pull(part: slice, values: Tensor) -> tuple[Tensor, Tensor]:
        stretch = slice(starts[part.start], starts[part.stop])
        with torch.enable_grad():
            of_part = values.detach().requires_grad_()
            of_rows = of_part.index_select(0, numbers[stretch] - part.start)
            theirs = None if reference is None else reference.flatten()[places[stretch]][None]
            share, _ = loss(pack.rows.tokens_at(places[stretch]), of_rows[None], theirs)
            [derivative] = torch.autograd.grad(share, of_part)
        return share.detach(), derivative

    return pull


@torch.no_grad()
def token_hits(model: PreTrainedModel, pack: Pack) -> Tensor:
    """(R, T) bool: where a trained token is the one that the model holds most likely. Otherwise as `token_logprobs`."""
    tree, trained = pack.tree, pack.rows.trained
    hidden, needed = _predicting(model, tree, trained)
    likeliest = _head(model)(hidden).argmax(dim=-1)
    return _place(likeliest == tree.tokens[needed], needed, tree, trained)


def _predicting(model: PreTrainedModel, tree: PrefixTree, trained: Tensor) -> tuple[Tensor, Tensor]:
    """Which M tokens of the tree are trained in any row, and the hidden states (M, width) that predict them."""
    needed = tree.places[trained].unique()
    needed = needed[tree.parents[needed] >= 0]  # (M,)
    before = tree.parents[needed]
    with tree_attention(model):
        body = model.base_model(
            input_ids=tree.tokens[None],
            position_ids=tree.positions[None],
            use_cache=False,
            branches=Branches(tree, model.dtype, where_wanted(before.unique(), len(tree))),
        )
    return body.last_hidden_state[0].index_select(0, before), needed


def _place(values: Tensor, needed: Tensor, tree: PrefixTree, trained: Tensor) -> Tensor:
    """Values of M tokens of the tree, gathered for every row that passes through them: (R, T)."""
    of_tree = values.new_zeros(len(tree)).index_put((needed,), values)
    # Not of_tree[places]: with several threads its backward pass adds up in an order that changes from run to run.
    return of_tree.index_select(0, tree.places.flatten()).view(tree.places.shape) * trained


def _head(model: PreTrainedModel) -> nn.Linear:
    return cast(nn.Linear, model.get_output_embeddings())


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model with the tree's attention, a last layer that spares what nobody looks at, and faster products, norms
    and gates; then as it was."""
    before = model.config._attn_implementation
    if before == TREE_ATTENTION:  # within another
        yield
        return
    model.config._attn_implementation = TREE_ATTENTION
    try:
        swift = replaced_forwards(swift_forwards(model))
        with sparing_last_layer(model, "branches"), swift_products(model), swift:
            yield
    finally:
        model.config._attn_implementation = before
