"""Models: read from a folder or the hub, or made from random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sleuth.engines.stops import find_eos_ids
from sleuth.learn.induction import begin_with_induction
from sleuth.recipe.training import InitRecipe
from sleuth.render import load_tokenizer
from sleuth.threads import PROCESS
from sleuth.types import SleuthError

transformers.utils.logging.disable_progress_bar()  # a run shows one bar, and it is ours

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Loaded = tuple[PreTrainedModel, dict[str, Any]]
"""A model, and what transformers found and missed while it loaded it."""


def load_model(path: str, *, dtype: str | None, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A causal language model and its tokenizer from a folder or a hub id; never runs code that comes with it.

    `dtype` None is float32 on a CPU and, on a GPU, what the weights are stored in.
    """
    tokenizer = load_tokenizer(path)
    place = pick_device(device)
    stored = torch.float32 if place == "cpu" else "auto"
    options = {"dtype": DTYPES[dtype] if dtype else stored, "trust_remote_code": False, "output_loading_info": True}
    try:
        model, found = cast(Loaded, AutoModelForCausalLM.from_pretrained(path, **options))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no model could be loaded from this folder or hub id: {reason}") from error
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random weights
        raise SleuthError(f"{path}: the weights lack {len(missing)} of the model's parameters, such as {missing[0]}")
    try:
        cast(torch.nn.Module, model).to(place)
    except torch.OutOfMemoryError:
        raise SleuthError(f"{path}: the weights in {model.dtype} do not fit on this machine's GPU") from None
    if place == "cpu":
        fit_threads(model)
    return model, tokenizer


def fit_threads(model: PreTrainedModel) -> None:
    """Sets the number of threads of this process by the size of its first model."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    embeddings = {id(layer.weight) for layer in layers if layer is not None}
    PROCESS.fit(sum(weight.numel() for weight in model.parameters() if id(weight) not in embeddings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a model's folder tells without its weights, for one that another process holds: its tokenizer, the tokens
    that end a text, and the longest sequence it was made for."""

    tokenizer: PreTrainedTokenizerFast
    eos_ids: frozenset[int]
    context: int


def load_outline(path: str) -> Outline:
    """Of a folder or a hub id; never runs code that comes with it."""
    tokenizer = load_tokenizer(path)
    try:
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(path, trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no model's config could be read from this folder or hub id: {reason}") from error
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:  # most folders have none: transformers then makes one of the config, as it does for a loaded model
        generation = GenerationConfig.from_model_config(config)
    return Outline(
        tokenizer=tokenizer, eos_ids=find_eos_ids(generation, tokenizer), context=int(config.max_position_embeddings)
    )


def pick_device(device: str) -> str:
    """`auto` is a GPU where there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SleuthError('device = "cuda": this machine shows no CUDA device; set device = "cpu" or "auto"')
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def random_model(init: InitRecipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A Qwen3 with random weights, a function of the shape and the seed alone."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=init.width,
        intermediate_size=init.mlp,
        num_hidden_layers=init.layers,
        num_attention_heads=init.heads,
        num_key_value_heads=init.kv_heads,
        head_dim=init.head_dim,
        max_position_embeddings=init.context,
        rope_parameters={"rope_type": "default", "rope_theta": init.rope_theta},
        initializer_range=init.std,
        tie_word_embeddings=init.tie,
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    if init.induction:
        bars = tokenizer(" |", add_special_tokens=False)["input_ids"]
        begin_with_induction(model, init.std, seed, tags=list(tokenizer.get_added_vocab().values()), bars=bars)
    fit_threads(model)
    return model


def context_of(model: PreTrainedModel) -> int:
    """The longest sequence that a model says it was made for."""
    return int(model.config.max_position_embeddings)
