"""Families with sliding windows: the learner beside transformers' own forward, on paths longer than the window."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers
from padded import group_rows, padded_logprobs, whole
from tiny_models import VOCABULARY
from transformers import CohereConfig, Gemma2Config, Lfm2Config, Llama4TextConfig, Qwen2MoeConfig, Qwen3NextConfig
from windowed_models import FAMILIES, WINDOW, windowed_model

from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.models import SINKS, check_family
from sleuth.types import SleuthError


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


TINY = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 48}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
REFUSED = {
    "layers of chunked_attention": Llama4TextConfig(
        **TINY, intermediate_size_mlp=48, head_dim=8, num_local_experts=2, attention_chunk_size=8
    ),
    "layers of conv": Lfm2Config(**TINY, layer_types=["conv", "full_attention"]),
    "attention is not replaceable": Qwen3NextConfig(**TINY, **LINEAR, head_dim=8, num_experts=2),
    "sliding window of 8 tokens is not passed": Qwen2MoeConfig(
        **TINY, use_sliding_window=True, sliding_window=8, max_window_layers=0, num_experts=2
    ),
    "attention is soft-capped at 50.0": Gemma2Config(**TINY, head_dim=8),
    "logits are soft-capped at 30.0": Gemma2Config(**TINY, head_dim=8, attn_logit_softcapping=None),
    "a factor, logit_scale": CohereConfig(**TINY),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_family_that_would_be_computed_wrongly_is_refused_in_a_line(line):
    with pytest.raises(SleuthError, match=f"{line}.*; what works: Qwen 2"):
        check_family(REFUSED[line])


def test_every_family_with_attention_sinks_is_known():
    folders = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    assert {file.parent.name for file in folders if "s_aux=" in file.read_text(encoding="utf-8")} == SINKS
