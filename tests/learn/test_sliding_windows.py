"""Families with sliding windows: the learner beside transformers' own forward, on paths longer than the window."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
import transformers
from padded import group_rows, padded_logprobs, whole
from tiny_models import VOCABULARY
from torch.nn.attention.flex_attention import flex_attention
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from windowed_models import FAMILIES, WINDOW, windowed_model

from sleuth.learn import attention
from sleuth.learn.attention import BlockAttention, Branches
from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.models import SINKS, plain_reason
from sleuth.learn.prefix_tree import prefix_tree


def some_batch(seed=0, longest=40):
    return collate(group_rows(random.Random(seed), groups=2, siblings=4, longest=longest))


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_are_those_of_transformers_own_forward(family):
    model, batch = windowed_model(family, VOCABULARY), some_batch()
    assert int(batch.lengths.max()) > 3 * WINDOW
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    told = []
    for logprobs in (token_logprobs(model, whole(batch))[0], padded_logprobs(model, batch)):
        gradients = torch.autograd.grad((logprobs * batch.trained).square().sum(), weights, allow_unused=True)
        told.append((logprobs.detach(), torch.cat([grad.flatten() for grad in gradients if grad is not None])))
    (ours, our_gradient), (theirs, their_gradient) = told
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (our_gradient - their_gradient).norm() <= 1e-4 * their_gradient.norm()


def test_the_window_matters_to_these_models():
    model, batch = windowed_model("gemma3", VOCABULARY), some_batch()
    narrow = token_logprobs(model, whole(batch))[0]
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    assert (token_logprobs(model, whole(batch))[0] - narrow).abs().max() > 0.1


def under_a_dense_mask(tree, query, key, value, window):
    """(1, N, H, D) by the ancestor test and the window on the whole square."""
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
    at = torch.arange(len(tree))
    visible = (at[None] <= at[:, None]) & (at[:, None] < tree.ends[None])
    visible &= tree.positions[:, None] - tree.positions[None] < window
    weights = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~visible, float("-inf")).softmax(-1)
    return (weights @ value).transpose(1, 2)


def drawn(longest, dtype):
    tree = prefix_tree(some_batch(3, longest))
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, len(tree), 8) for heads in (4, 2, 2)]
    return tree, [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("window", [1, 9, 299])
@pytest.mark.parametrize("max_mask_tokens", [0, 5, 128])
def test_every_token_attends_to_the_last_tokens_of_its_path(monkeypatch, max_mask_tokens, window):
    monkeypatch.setattr(attention, "MAX_MASK_TOKENS", max_mask_tokens)
    tree, tensors = drawn(300, torch.float64)
    blocks = Branches(tree, torch.float64).within(window).blocks
    seen = torch.zeros(len(tree), dtype=torch.int64)
    for block in blocks:
        seen[block.queries] += block.includes_self
    assert (seen == 1).all()
    ours, plain = BlockAttention.apply(*tensors, blocks, 0.3), under_a_dense_mask(tree, *tensors, window)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    arrived = torch.randn(ours.shape, dtype=torch.float64)
    gradients = (torch.autograd.grad(output, tensors, arrived) for output in (ours, plain))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("window", [40, 200])
def test_flex_attention_with_a_window_gives_the_same(window):
    tree, tensors = drawn(150, torch.float32)
    tensors = [tensor.detach() for tensor in tensors]
    mask = attention.ancestor_block_mask(tree.ends, tree.positions, window)
    flex = flex_attention(*tensors, block_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(flex, under_a_dense_mask(tree, *tensors, window), rtol=0, atol=1e-5)
    whole_mask = attention.ancestor_block_mask(tree.ends)
    assert mask.sparsity() >= whole_mask.sparsity()


TINY = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN = {
    "layers of chunked_attention": lambda: Llama4ForCausalLM(
        Llama4TextConfig(**TINY, num_key_value_heads=2, intermediate_size=48, intermediate_size_mlp=48, head_dim=8,
                         num_local_experts=2, attention_chunk_size=8)
    ),
    "layers of conv": lambda: Lfm2ForCausalLM(
        Lfm2Config(**TINY, num_key_value_heads=2, intermediate_size=48, layer_types=["conv", "full_attention"])
    ),
    "layers of linear_attention": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**TINY, num_key_value_heads=2, intermediate_size=48, head_dim=8, num_experts=2,
                        num_experts_per_tok=1, layer_types=["linear_attention", "full_attention"])
    ),
    "sliding window of 8 tokens is not passed": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**TINY, num_key_value_heads=2, intermediate_size=48, use_sliding_window=True, sliding_window=8,
                       max_window_layers=0, num_experts=2, num_experts_per_tok=1)
    ),
    "attention is soft-capped at 50.0": lambda: Gemma2ForCausalLM(
        Gemma2Config(**TINY, num_key_value_heads=2, intermediate_size=48, head_dim=8)
    ),
    "logits are soft-capped at 30.0": lambda: Gemma2ForCausalLM(
        Gemma2Config(**TINY, num_key_value_heads=2, intermediate_size=48, head_dim=8, attn_logit_softcapping=None)
    ),
    "a factor, logit_scale": lambda: CohereForCausalLM(
        CohereConfig(**TINY, num_key_value_heads=2, intermediate_size=48)
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", PLAIN)
def test_a_family_that_prefix_trees_would_compute_wrongly_is_computed_row_by_row(line):
    model, batch = PLAIN[line]().eval(), some_batch()
    assert re.search(line, plain_reason(model.config) or "")
    ours, theirs = token_logprobs(model, whole(batch))[0], padded_logprobs(model, batch)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_every_family_with_attention_sinks_is_known():
    folders = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    assert {file.parent.name for file in folders if "s_aux=" in file.read_text(encoding="utf-8")} == SINKS
