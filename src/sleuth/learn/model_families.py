"""Which model families the learner and the engine compute as transformers does; the others are refused in a line.

Decided by the config and the class that transformers has for it, so that a check without weights says the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from sleuth.types import SleuthError

LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Types of layers that are attention."""
WINDOWS_BY_MASK = {"qwen2_moe", "phimoe", "doge"}
"""Model types whose sliding window is known to the mask alone, which neither learner nor engine has."""
SINKS = {
    "deepseek_v4",
    "flint",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "hy_v4",
    "mimo_v2_flash",
    "openai_privacy_filter",
}
"""Model types with attention sinks."""
LOGIT_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier")
WORKING = (
    "what works: Qwen 2, 2.5 and 3, Llama 2 and 3, Mistral, Gemma 3, SmolLM 3, Olmo 3, Phi 3 and models built like them"
)


def family_problem(config: PreTrainedConfig, *, trains: bool = True) -> str | None:
    """Why a model with this config cannot be computed, or, with `trains`, not be trained; None if it can."""
    kind = cast("type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
    if kind is None:
        return f"{config.model_type}: transformers has no causal language model of this type"
    text = config.get_text_config()
    if why := next(_attention_problems(text, kind._supports_attention_backend), None):
        return f"{kind.__name__} can neither be trained nor run in this process: {why}"
    if trains and (why := next(_logits_problems(text), None)):
        return f"{kind.__name__} cannot be trained: {why}"
    return None


def check_family(config: PreTrainedConfig, *, trains: bool = True) -> None:
    """Raises SleuthError for a `family_problem`."""
    if problem := family_problem(config, trains=trains):
        raise SleuthError(f"{problem}; {WORKING}")


def _attention_problems(config: PreTrainedConfig, replaceable: bool) -> Iterator[str]:
    """Why a layer is not causal attention, with or without a window, that can be replaced."""
    if not replaceable:
        yield "its attention is not replaceable"
    layers = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    if other := next((layer for layer in layers if layer not in LAYER_TYPES), None):
        yield f"it has layers of {other}, and only attention is computed over packed texts"
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if config.model_type in WINDOWS_BY_MASK and window is not None:
        yield (
            f"its sliding window of {window} tokens is not passed to its attention; set use_sliding_window = false if "
            "episodes are shorter"
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield f"its attention is soft-capped at {config.attn_logit_softcapping}"
    if config.model_type in SINKS:
        yield "its attention has sinks"


def _logits_problems(config: PreTrainedConfig) -> Iterator[str]:
    """Why the logits are not the output embeddings times the last hidden state."""
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        yield f"its logits are soft-capped at {cap}"
    if factor := next((name for name in LOGIT_FACTORS if getattr(config, name, None) not in (None, 1)), None):
        yield f"its logits have a factor, {factor}"
