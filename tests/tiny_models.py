"""Tiny causal models of three families, with grouped-query attention, and models in float64."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 41  # no multiple of any number of ranks: the last one has fewer rows
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


def in_float64(model):
    """The model with nothing left that rounds to fp32: Hugging Face's norms do, whatever the model's dtype."""
    model = model.double()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                exact = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                exact.weight = child.weight
                setattr(module, name, exact)
    return model
