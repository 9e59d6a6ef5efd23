"""Families with sliding windows: the engine beside transformers' own forward, on texts longer than the window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from playing import expected_logits, gather, require_logprobs
from windowed_models import FAMILIES, WINDOW, windowed_model

from sleuth.engines.local import engine as local_engine
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.paged_attention import ChunkwiseAttention, GatheredAttention
from sleuth.kernels.decode_attention import CompiledDecodeAttention
from sleuth.types import Sampling

PAGE = 16


def written(engine, prompts, temperature):
    """Two siblings of each prompt with 25 more tokens."""
    samplings = (Sampling(max_tokens=25, temperature=temperature, key=(0, n)) for n in range(2 * len(prompts)))
    asked = zip([prompt for prompt in prompts for _ in range(2)], samplings, strict=True)
    return gather(*(engine.complete(*one) for one in asked))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logprobs_are_those_of_transformers_own_forward(tokenizer, words, monkeypatch, family):
    monkeypatch.setattr(local_engine, "CPU_FORWARD_TOKENS", 16)  # prompts are read in parts
    model = windowed_model(family, len(tokenizer))
    prompts = [words(n, seed=n) for n in (3, 2 * WINDOW, 50)]
    for temperature in (1.0, 0):
        engine = LocalEngine(model, tokenizer, slots=4, context=128)
        for number, completion in enumerate(written(engine, prompts, temperature)):
            prompt = prompts[number // 2]
            require_logprobs(model, prompt, completion)
            if temperature == 0:
                greedy = expected_logits(model, prompt, completion.tokens).argmax(-1)
                assert list(completion.tokens) == greedy.tolist()


@pytest.mark.parametrize("window", [1, 5, PAGE, 40])
@pytest.mark.parametrize("way", ["compiled", "gathered", "prefill", "last tokens"])
def test_paged_attention_reads_the_last_keys_of_a_window(way, window):
    """Beside a softmax over just these keys, with rows shorter and longer than the window."""
    generator, size = torch.Generator().manual_seed(0), 8
    dtype = torch.float32 if way == "compiled" else torch.float64
    lengths = np.array([1, 4, 17, 63, 80])
    pages = np.random.default_rng(0).permutation(25).astype(np.int32).reshape(5, 5)
    keys, values = torch.randn(2, 2, 25, PAGE, size, generator=generator, dtype=dtype)
    starts = np.maximum(0, lengths - 7) if way == "prefill" else lengths - 1
    if way == "compiled":
        made = CompiledDecodeAttention(pages, np.arange(5), np.zeros(5, dtype=np.int64), lengths - 1, [])
    elif way == "gathered":
        made = GatheredAttention(pages, lengths, PAGE, torch.device("cpu"))
    else:
        made = ChunkwiseAttention(pages, np.maximum(0, lengths - 7), lengths, PAGE, torch.device("cpu"))
        made = made if way == "prefill" else made.for_last_tokens()
    query = torch.randn(int((lengths - starts).sum()), 2, 3, size, generator=generator, dtype=dtype)
    output = made.within(window).attend(query, keys, values, 0.3)
    at = 0
    for row, (start, stop) in enumerate(zip(starts, lengths, strict=True)):
        own_keys, own_values = (tensor[:, pages[row].tolist()].flatten(1, 2) for tensor in (keys, values))
        for position in range(start, stop):
            seen = slice(max(0, position + 1 - window), position + 1)
            scores = torch.einsum("hgd,hld->hgl", query[at], own_keys[:, seen]) * 0.3
            expected = torch.einsum("hgl,hld->hgd", scores.softmax(-1), own_values[:, seen])
            torch.testing.assert_close(output[at], expected, rtol=1e-4, atol=1e-5)
            at += 1
