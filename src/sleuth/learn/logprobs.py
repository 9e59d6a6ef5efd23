"""Log-probabilities of given tokens under a model, and losses of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.kernels.fused import fused_forwards
from sleuth.kernels.last_layer import select_outputs, skip_unused_outputs
from sleuth.kernels.matmul import onednn_linears, replaced_forwards
from sleuth.kernels.vocabulary import logprobs_with_grad, target_logprobs, top_logprobs
from sleuth.learn.attention import TREE_ATTENTION, Branches, Observe
from sleuth.learn.batch import Row, collate
from sleuth.learn.model_families import check_family
from sleuth.learn.prefix_tree import Pack, PrefixTree, gather_rows, pack
from sleuth.learn.targets import Targets, TokenLoss


def token_logprobs(
    model: PreTrainedModel, pack: Pack, *, temperature: float = 1.0, observe: Observe | None = None
) -> tuple[Tensor, Tensor]:
    """Natural-log probability of each trained token given those before it, and the entropy of its distribution.

    Both are (R, T) fp32 for the R rows of the pack; index t belongs to token t, and both are 0 for untrained tokens and
    at t = 0. The entropy, in nats, has no gradient. The softmax is fp32, at `temperature`.

    Each distinct token is computed once, and the vocabulary projection only at tokens that predict a trained one; rows
    that share a token share its value, and their gradients add up. The model must be a decoder with a replaceable
    attention function whose logits are its output embeddings times its last hidden state (Qwen, Llama and similar; no
    soft-capped or rescaled logits). `observe`, if given, is called in each layer's attention.
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
    """The hidden states (M, width) that predict the targets."""
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


def head_of(model: PreTrainedModel) -> nn.Linear:
    """The projection onto the vocabulary."""
    return cast(nn.Linear, model.get_output_embeddings())


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """In this context the model uses tree attention, skips unused outputs of the last layer, and has faster linear
    layers, norms and gates."""
    before = model.config._attn_implementation
    if before == TREE_ATTENTION:  # nested
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
    for part in pack(collate(rows), budget):
        values, _ = token_logprobs(model, part.to(model.device), temperature=temperature)
        for row, logprobs in zip(part.members, values.tolist(), strict=True):
            by_row[row] = logprobs[: len(rows[row].tokens)]
    return [by_row[row] for row in range(len(rows))]
