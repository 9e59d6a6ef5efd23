"""Tiny models with random weights and a byte-level tokenizer: everything the engine's promises need."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ARCHITECTURES = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "llama": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1}),
}

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "initializer_range": 0.2}
SIZES |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["where was Ada Voss born? <search> Ada Voss </search> " * 9], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@pytest.fixture(scope="session")
def make_model(tokenizer):
    def make(architecture: str = "qwen3", *, tied: bool = False) -> PreTrainedModel:
        """Two layers of four heads that share keys; weights large enough that the next token is not a coin toss."""
        model_class, config_class, options = ARCHITECTURES[architecture]
        torch.manual_seed(0)
        settings = SIZES | {"vocab_size": len(tokenizer), "tie_word_embeddings": tied} | options
        return model_class(config_class(**settings)).eval()

    return make


@pytest.fixture(scope="session")
def model(make_model) -> PreTrainedModel:
    """Shared: tests must leave its weights alone."""
    return make_model()


@pytest.fixture
def words(tokenizer):
    """`words(n, seed)`: a run of n tokens that end no text."""
    return lambda n, seed=0: random.Random(seed).choices(range(1, len(tokenizer)), k=n)
