"""Tiny random models of the families with sliding windows, three layers each: windows of 9 tokens, and where a family
mixes them, a layer that sees everything."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

WINDOW = 9
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {}),
    "ministral": ("Ministral", {"layer_types": MIXED, "head_dim": 8}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "use_sliding_window": True,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "layer_types": MIXED}),
    "qwen3": ("Qwen3", {"use_sliding_window": True, "layer_types": MIXED, "head_dim": 8}),
    "smollm3": ("SmolLM3", {"use_sliding_window": True, "layer_types": MIXED, "no_rope_layers": [1, 0, 1]}),
    "gemma3": ("Gemma3", {"layer_types": MIXED, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "olmo3": ("Olmo3", {"layer_types": MIXED}),
    "exaone4": ("Exaone4", {"layer_types": MIXED}),
    "phi3": ("Phi3", {}),
    "starcoder2": ("Starcoder2", {}),
}
"""The class of each, without its ending, and the settings of its config."""


def windowed_model(family: str, vocabulary: int) -> PreTrainedModel:
    """A model of the family; the same weights every time."""
    name, settings = FAMILIES[family]
    config_class = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = config_class(
        vocab_size=vocabulary,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        sliding_window=WINDOW,
        attn_implementation="eager",
        **{**sizes, **ends, **settings},
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()
