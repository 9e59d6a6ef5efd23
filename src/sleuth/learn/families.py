"""Which model families the learner and the engine compute as transformers does; the others are refused in a line."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from sleuth.types import SleuthError

LAYER_TYPES = {"full_attention", "sliding_attention"}
WINDOWS_BY_MASK = {"qwen2_moe", "phimoe", "doge"}
"""Model types whose sliding window is known to the mask alone, which neither learner nor engine has."""
LOGIT_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier")


def check_attention(model: PreTrainedModel) -> None:
    """Raises SleuthError if a layer of the model is not causal attention, with or without a window, that can be
    replaced. (Soft caps and sinks are refused where attention is called with them.)"""
    config = model.config.get_text_config()
    name = type(model).__name__
    if not model._supports_attention_backend:
        raise SleuthError(f"{name} can neither be trained nor run in this process: its attention is not replaceable")
    layers = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    other = next((layer for layer in layers if layer not in LAYER_TYPES), None)
    if other is not None:
        raise SleuthError(
            f"{name} can neither be trained nor run in this process: it has layers of {other}, and only attention, "
            "to all tokens or in a sliding window, is computed over packed texts"
        )
    if config.model_type in WINDOWS_BY_MASK and _window(config) is not None:
        raise SleuthError(
            f"{name} can neither be trained nor run in this process: its sliding window of {_window(config)} tokens is "
            "not passed to its attention; set use_sliding_window = false if episodes are shorter"
        )


def check_logits(model: PreTrainedModel) -> None:
    """Raises SleuthError if the logits are not the output embeddings times the last hidden state."""
    config = model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        raise SleuthError(f"{type(model).__name__} cannot be trained: its logits are soft-capped at {cap}")
    for name in LOGIT_FACTORS:
        if getattr(config, name, None) not in (None, 1):
            raise SleuthError(f"{type(model).__name__} cannot be trained: its logits have a factor, {name}")


def _window(config: PretrainedConfig) -> int | None:
    """The sliding window that a config asks for."""
    return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
