from __future__ import annotations

import random

import pytest
import torch
from padded import padded_logprobs, whole
from tiny_models import VOCABULARY, in_float64

from sleuth.kernels.layers import select_outputs
from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs, tree_attention
from sleuth.learn.recomputation import recomputed_layers


def long_prompts_with_few_trained_tokens(seed: int = 0) -> list[Row]:
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
@pytest.mark.parametrize("max_mask_tokens", [4, 128])
@pytest.mark.parametrize("recompute", [False, True])
def test_only_tokens_that_predict_go_through_the_last_layer_and_no_gradient_changes(
    make_model, tokens_seen, monkeypatch, family, max_mask_tokens, recompute
):
    monkeypatch.setattr("sleuth.learn.attention.MAX_MASK_TOKENS", max_mask_tokens)
    model, batch = in_float64(make_model(family)), collate(long_prompts_with_few_trained_tokens())
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
    model, batch = make_model(), collate(long_prompts_with_few_trained_tokens())
    token_logprobs(model, whole(batch))
    seen = tokens_seen(model)
    model(batch.tokens)
    assert seen == [batch.tokens.shape[1]]


def test_a_last_layer_with_other_parts_computes_every_token(make_model):
    model, batch = make_model(), collate(long_prompts_with_few_trained_tokens())
    expected = padded_logprobs(model, batch)
    block = model.base_model.layers[-1].mlp
    block.up = block.down_proj
    block.forward = lambda hidden: block.up(block.act_fn(block.gate_proj(hidden)) * block.up_proj(hidden))
    del block.down_proj  # a feed-forward block that calls its parts otherwise
    torch.testing.assert_close(token_logprobs(model, whole(batch))[0], expected, rtol=1e-5, atol=1e-5)


def test_all_tokens_are_computed_if_nearly_all_are_outputs():
    outputs = torch.arange(8)
    assert select_outputs(outputs[:7], 8) is not None
    assert select_outputs(outputs, 8) is None
