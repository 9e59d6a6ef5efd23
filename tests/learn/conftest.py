from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from sleuth.learn.batch import Row

VOCABULARY = 40
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # so that a random model is far from uniform
}
FAMILIES = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
}


@pytest.fixture
def make_model():
    """Builds a tiny causal model; the same weights every time for the same family and seed."""

    def make(family: str = "qwen3", seed: int = 0):
        torch.manual_seed(seed)
        return FAMILIES[family]().eval()

    return make


@pytest.fixture
def make_rows():
    """Builds ragged rows in the shape of a search: prompt, policy, retrieved text, policy."""

    def make(rows: int = 7, seed: int = 0) -> list[Row]:
        draw = random.Random(seed)

        def row() -> Row:
            spans = [(False, draw.randint(2, 6)), (True, draw.randint(1, 5))]
            spans += [(False, draw.randint(1, 8)), (True, draw.randint(1, 5))]
            trained = tuple(written for written, length in spans for _ in range(length))
            return Row(
                tokens=tuple(draw.randrange(VOCABULARY) for _ in trained),
                trained=trained,
                advantage=draw.uniform(-2, 2),
                sampler_logprobs=tuple(-draw.uniform(2.0, 5.0) if written else 0.0 for written in trained),
            )

        return [row() for _ in range(rows)]

    return make
