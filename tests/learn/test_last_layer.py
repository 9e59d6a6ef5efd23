from __future__ import annotations

import random

import pytest
import torch
from padded import in_float64, padded_logprobs, whole
from test_tree_attention import drawn, under_a_dense_mask
from tiny_models import VOCABULARY

from sleuth.learn.attention import BlockAttention, Branches
from sleuth.learn.batch import Row, collate
from sleuth.learn.last_layer import where_wanted
from sleuth.learn.logprobs import token_logprobs, tree_attention
from sleuth.learn.policy import recomputed_layers


def read_much_write_little(seed: int = 0) -> list[Row]:
    """Siblings with a long prompt, a few tokens written, a long observation of their own, and a few more."""
    draw = random.Random(seed)

    def some(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    trained = (*[False] * 20, *[True] * 3, *[False] * 25, *[True] * 4)
    prompts = [some(20), some(20)]
    return [Row(tokens=(*prompts[row % 2], *some(32)), trained=trained, advantage=1.0) for row in range(6)]


@pytest.fixture
def tokens_seen():
    """(model) -> how many tokens each forward of the last layer's feed-forward block saw, as they come."""

    def watch(model):
        seen = []
        last = model.base_model.layers[-1].mlp.gate_proj
        last.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[1]))
        return seen

    return watch


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("bush", [4, 128])
@pytest.mark.parametrize("recompute", [False, True])
def test_only_tokens_that_predict_go_through_the_last_layer_and_no_gradient_changes(
    make_model, tokens_seen, monkeypatch, family, bush, recompute
):
    monkeypatch.setattr("sleuth.learn.attention.BUSH", bush)
    model, batch = in_float64(make_model(family)), collate(read_much_write_little())
    seen, expected = tokens_seen(model), padded_logprobs(model, batch)
    logprob_grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = gradients(model, (expected * logprob_grad).sum())
    layers = recomputed_layers(model) if recompute else []
    seen.clear()
    with tree_attention(model):
        for module in layers:
            module.training = True
        ours, _ = token_logprobs(model, whole(batch))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
        mine = gradients(model, (ours * logprob_grad).sum())
    # 2 prompts end once for 3 siblings each; then 2 of 3 written tokens, an observation's end and 3 of 4.
    assert seen == [2 + 6 * (2 + 1 + 3)] * (2 if recompute else 1)
    for name, gradient in plain.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-10, atol=1e-10, msg=name)


def test_afterwards_the_model_computes_all_of_its_last_layer(make_model, tokens_seen):
    model, batch = make_model(), collate(read_much_write_little())
    token_logprobs(model, whole(batch))
    seen = tokens_seen(model)
    model(batch.tokens)
    assert seen == [batch.tokens.shape[1]]


def test_a_model_of_other_parts_computes_everything(make_model):
    model, batch = make_model(), collate(read_much_write_little())
    expected = padded_logprobs(model, batch)
    block = model.base_model.layers[-1].mlp
    block.up = block.down_proj
    block.forward = lambda hidden: block.up(block.act_fn(block.gate_proj(hidden)) * block.up_proj(hidden))
    del block.down_proj  # a feed-forward block that calls its parts otherwise
    torch.testing.assert_close(token_logprobs(model, whole(batch))[0], expected, rtol=1e-5, atol=1e-5)


def test_where_nearly_all_tokens_are_wanted_all_are_computed():
    wanted = torch.arange(8)
    assert where_wanted(wanted[:7], 8) is not None
    assert where_wanted(wanted, 8) is None


@pytest.mark.parametrize("bush", [0, 5, 128])
@pytest.mark.parametrize("seed", range(4))
def test_wanted_tokens_see_their_path_as_before_and_the_others_pull_on_nothing(monkeypatch, bush, seed):
    monkeypatch.setattr("sleuth.learn.attention.BUSH", bush)
    tree, tensors = drawn(2, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    wanted = (torch.rand(len(tree), generator=draw) < 0.2).nonzero()[:, 0]
    blocks = Branches(tree, torch.float64, wanted).narrowed().blocks
    ours, plain = BlockAttention.apply(*tensors, blocks, 0.3), under_a_dense_mask(tree, *tensors, 0.3)
    torch.testing.assert_close(ours[:, wanted], plain[:, wanted], rtol=0, atol=1e-12)
    arrived = torch.zeros_like(plain)
    arrived[:, wanted] = torch.randn(1, len(wanted), *plain.shape[2:], generator=draw, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(ours, tensors, arrived), torch.autograd.grad(plain, tensors, arrived), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)
    looking = sum(block.queries.stop - block.queries.start for block in blocks if block.own)
    assert bush == 128 or looking < len(tree)
