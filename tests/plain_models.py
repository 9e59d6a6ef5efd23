"""Tiny random models of families that are computed the plain way, with weights so large that soft caps, sinks, factors,
convolutions and recurrent states matter."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}),
    "qwen3_next": ("Qwen3Next", LINEAR | EXPERTS | {"shared_expert_intermediate_size": 16}),
    "qwen3_5": ("Qwen3_5", LINEAR),
    "granite_hybrid": (
        "GraniteMoeHybrid",
        {
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
            "num_local_experts": 0,
            "shared_intermediate_size": 48,
            "logits_scaling": 0.5,
            "embedding_multiplier": 3.0,
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 9,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9},
    ),
}
"""The class of each, without its ending, and the settings of its config."""


def plain_model(family: str, vocabulary: int, *, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A model of the family; the same weights for the same seed."""
    name, own = FAMILIES[family]
    config_class = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config_class(vocab_size=vocabulary, **SIZES | own | settings))
    for weight in model.parameters():  # what a family begins at 0, such as sinks and norms that add 1
        if not weight.count_nonzero():
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()
