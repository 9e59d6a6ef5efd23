"""Models from a folder or the hub, or with random weights; tokens added to their vocabulary; which families work."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AddedToken,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sleuth import family
from sleuth.host.cards import prepare_card
from sleuth.host.checksums import beside_weights, of_model, require_intact
from sleuth.host.model_path import read_object, require_plain
from sleuth.host.threads import PROCESS
from sleuth.render import find_eos_ids, load_tokenizer
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe.training import InitRecipe

transformers.utils.logging.disable_progress_bar()  # a run shows one progress bar: its own

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Loaded = tuple[PreTrainedModel, dict[str, Any]]
"""A model, and the loading info of transformers."""


def load_model(
    path: str, *, dtype: str | None, device: str, verified: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A causal language model and its tokenizer from a folder or a hub id; never runs code that comes with it.

    `dtype` None is float32 on a CPU and, on a GPU, what the weights are stored in. Unless another rank has
    `verified` them, the files of a folder with checksums are verified first, and the card of a hub id is fetched.
    Raises SleuthError.
    """
    if not verified:
        require_intact(Path(path), of_model)
    tokenizer = load_tokenizer(path)
    place = pick_device(device)
    stored = torch.float32 if place == "cpu" else "auto"
    text = read_config(path).get_text_config()
    needed = max(tokenizer.vocab_size, cast(int, tokenizer.eos_token_id or 0) + 1)
    if (rows := getattr(text, "vocab_size", needed)) < needed:
        raise SleuthError(f"{path}: vocab_size = {rows} of its config, but its tokenizer has {needed} tokens")
    _require_weights(Path(path), getattr(text, "num_hidden_layers", None) or 0)
    options = {"dtype": DTYPES[dtype] if dtype else stored, "trust_remote_code": False, "output_loading_info": True}
    try:
        with _silent():  # it prints a table of what does not fit, and the reason here is one line
            model, found = cast(Loaded, AutoModelForCausalLM.from_pretrained(path, **options))
    except Exception as error:  # what transformers raises depends on the files
        reason = _reason(error)
        if "ignore_mismatched_sizes" in reason:
            reason = "its weights have other shapes than its config.json says"
        elif "Weights only load failed" in reason:
            reason = "its weights are a pickle with code in it, which was not run, or damaged"
        raise SleuthError(f"{path}: no model could be loaded from this folder or hub id: {reason}") from error
    if not verified:
        prepare_card(path)
    if missing := sorted(found["missing_keys"]):  # transformers would fill them with random weights
        raise SleuthError(f"{path}: the weights lack {len(missing)} of the model's parameters, such as {missing[0]}")
    try:
        cast(nn.Module, model).to(place)
    except torch.OutOfMemoryError:
        raise SleuthError(f"{path}: the weights in {model.dtype} do not fit on this machine's GPU") from None
    if place == "cpu":
        fit_threads(model)
    _freeze_unused(model)
    return model, tokenizer


def _require_weights(folder: Path, layers: int) -> None:
    """Raises SleuthError if the folder holds an adapter, which names another model to load, an index without files of
    its own, or far fewer tensors than the config has layers, which transformers would fill with random weights."""
    if (folder / "adapter_config.json").exists():
        raise SleuthError(f"{folder}: holds adapter_config.json, an adapter of another model: merge it with that first")
    names = 0
    if (index := folder / "model.safetensors.index.json").is_file() and not (folder / "model.safetensors").is_file():
        files = read_object(index).get("weight_map")
        if not (isinstance(files, dict) and files) or any(Path(str(name)).name != name for name in files.values()):
            raise SleuthError(f"{index}: weight_map should name a file of this folder for each weight")
        names = len(files)
    elif (folder / "model.safetensors").is_file():
        try:
            with safe_open(folder / "model.safetensors", framework="pt") as weights:
                names = len(weights.keys())
        except (SafetensorError, OSError) as error:
            raise SleuthError(f"{folder / 'model.safetensors'}: cannot be read: {_reason(error)}") from None
    if names and layers > names:
        raise SleuthError(f"{folder}: num_hidden_layers = {layers} of its config, but its weights are {names} tensors")


@contextmanager
def _silent() -> Iterator[None]:
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _freeze_unused(model: PreTrainedModel) -> None:
    """Freezes what no text reaches: the images' part of a model that also sees."""
    if model.config.get_text_config() is not model.config:
        read = (model.get_decoder(), cast(nn.Module, model.get_output_embeddings()))
        used = {id(weight) for part in read for weight in part.parameters()}
        for weight in model.parameters():
            weight.requires_grad_(id(weight) in used)


def load_frozen_teacher(
    path: str, tokenizer: PreTrainedTokenizerFast, *, dtype: str | None, device: str, verified: bool = False
) -> PreTrainedModel:
    """A frozen model that reads the tokens of `tokenizer`; otherwise as `load_model`."""
    _require_same_tokens(path, tokenizer)
    model, _ = load_model(path, dtype=dtype, device=device, verified=verified)
    return model.eval().requires_grad_(False)


def require_teacher(
    path: str, tokenizer: PreTrainedTokenizerFast | None, context: int, top_k: int | None = None
) -> None:
    """Raises SleuthError unless the model at `path` reads the tokens of `tokenizer`, if that is known, in episodes of
    `context` tokens, and has more than `top_k` of them."""
    if tokenizer is not None and top_k is not None and top_k >= len(tokenizer):
        raise SleuthError(
            f"teacher.top_k = {top_k} is not below the {len(tokenizer)} words of the vocabulary; set fewer, such as 16"
        )
    if tokenizer is not None:
        _require_same_tokens(path, tokenizer)
    check_family(read_config(path))
    if context > (positions := load_outline(path).context):
        raise SleuthError(
            f"{path}: context = {context} is more than the {positions} positions of this teacher; lower context, or "
            "name another teacher"
        )


def _require_same_tokens(path: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raises SleuthError unless each token of `tokenizer` has the same id in that of the model at `path`."""
    theirs = load_tokenizer(path).get_vocab()
    ours = tokenizer.get_vocab()
    differing = sorted((number, token) for token, number in ours.items() if theirs.get(token) != number)
    if not differing:
        return
    number, token = differing[0]
    found = "does not have" if token not in theirs else f"has as {theirs[token]}"
    raise SleuthError(
        f"{path}: its tokenizer is not the policy's: {len(differing)} of {len(ours)} tokens differ, such as {token!r}, "
        f"which is {number} to the policy and which it {found}; a teacher must read the policy's tokens"
    )


def weights_sha256(model: PreTrainedModel) -> str:
    """The sha256 of all weights of a model, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def fit_threads(model: PreTrainedModel) -> None:
    """Sets the number of threads of this process by the size of its first model."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    embeddings = {id(layer.weight) for layer in layers if layer is not None}
    PROCESS.fit(sum(weight.numel() for weight in model.parameters() if id(weight) not in embeddings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is known of a model without loading its weights, which another process has: its tokenizer, the tokens that
    end a text, and the longest sequence it was made for."""

    tokenizer: PreTrainedTokenizerFast
    eos_ids: frozenset[int]
    context: int


def load_outline(path: str) -> Outline:
    """The outline of a model in a folder or on the hub; never runs code that comes with it. Files of a folder with
    checksums are verified first, except the weights."""
    require_intact(Path(path), beside_weights)
    tokenizer = load_tokenizer(path)
    config = read_config(path)
    try:
        eos_ids = find_eos_ids(GenerationConfig.from_pretrained(path), tokenizer)
    except OSError:  # most folders have none; transformers too makes one from the config
        eos_ids = find_eos_ids(GenerationConfig.from_model_config(config), tokenizer)
    except Exception as error:  # likewise
        raise SleuthError(f"{path}: its generation_config.json cannot be used: {error}; fix or remove it") from error
    return Outline(tokenizer=tokenizer, eos_ids=eos_ids, context=_positions(config, path))


def read_config(path: str) -> PreTrainedConfig:
    """The config of a model in a folder or on the hub. Raises SleuthError."""
    require_plain(path)
    try:
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(path, trust_remote_code=False))
    except Exception as error:  # what transformers raises depends on the file
        raise SleuthError(
            f"{path}: no model's config could be read from this folder or hub id: {_reason(error)}"
        ) from error


def pick_device(device: str) -> str:
    """The device; `auto` is a GPU if there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SleuthError('device = "cuda": this machine shows no CUDA device; set device = "cpu" or "auto"')
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def random_model(init: InitRecipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A Qwen3 with random weights, a function of the shape, the seed and, where a family draws some, the tokenizer."""
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
        tie_word_embeddings=True,
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    for overwrite in family.initial_weights(init):
        overwrite(model, init, tokenizer, seed)
    fit_threads(model)
    return model


def place_weights(model: PreTrainedModel, *, dtype: str, device: str) -> None:
    """Moves random weights to the device and the dtype of a recipe. Buffers keep theirs, as in a model that is loaded:
    rotary frequencies in bfloat16 would be other ones."""
    for weights in model.parameters():
        weights.data = weights.data.to(DTYPES[dtype])
    cast(nn.Module, model).to(pick_device(device))


def context_of(model: PreTrainedModel) -> int:
    """The longest sequence that a model was made for, by its config."""
    return _positions(model.config, str(model.name_or_path))


def _positions(config: PreTrainedConfig, name: str) -> int:
    """The same of a config; of models that also see, that of their text model."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        raise SleuthError(
            f"{name}: max_position_embeddings = {positions} of its config: should be the longest sequence in tokens "
            "that it was made for"
        )
    return positions


def add_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
    """Adds a token for each text that the tokenizer encodes with several; returns the texts that were added.

    The new embeddings are drawn from a normal distribution with mean and covariance of the others, with a fixed seed
    (Hewitt, 2021). The mean of the embeddings of a text's tokens would not do: single bytes are hardly ever trained, so
    they are nearly equal, and attention could not distinguish their means. Unused rows beyond the vocabulary, which
    some models have, are used first.
    """
    known = len(tokenizer)
    added = add_to_tokenizer(tokenizer, texts)
    if len(tokenizer) > cast(nn.Embedding, model.get_input_embeddings()).num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tables = {
        id(table): table for table in map(_weights, (model.get_input_embeddings(), model.get_output_embeddings()))
    }
    with torch.no_grad():
        for table in tables.values():  # one where they are tied
            table[known : known + len(added)] = _drawn_like(table[:known], len(added))
    return added


def add_to_tokenizer(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
    """The part of `add_tokens` that needs no model."""
    added = [text for text in texts if len(tokenizer.encode(text, add_special_tokens=False)) > 1]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    return added


def _weights(module: object) -> Tensor:
    return cast(nn.Embedding, module).weight


def _drawn_like(rows: Tensor, count: int) -> Tensor:
    """`count` draws from a normal distribution with the mean and covariance of the rows."""
    mean = rows.float().mean(dim=0)
    draws = torch.randn(count, len(rows), generator=torch.Generator().manual_seed(0)).to(rows.device)
    return (mean + draws @ (rows.float() - mean) / len(rows) ** 0.5).to(rows.dtype)


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
SLOWER_UPDATES, SLOWER_ROLLOUTS = 1.6, 2.5
"""Processor time of the plain way over that of ours (docs/how-to/one_card.md says of what)."""
LOGIT_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier")
WORKING = (
    "what works: Qwen 2, 2.5 and 3, Llama 2 and 3, Mistral, Gemma 3, SmolLM 3, Olmo 3, Phi 3 and models built like "
    "them, and, more slowly, LFM 2, Qwen 3.5, Granite hybrids, Gemma 2, gpt-oss and others whose forward takes a cache"
)
PLAIN_NEEDS = ("attention_mask", "past_key_values", "logits_to_keep")
"""What the plain way passes to a model's own forward."""


def family_problem(config: PreTrainedConfig) -> str | None:
    """Why a model with this config can neither be trained nor run in this process; None if it can."""
    kind = _causal_class(config)
    if kind is None:
        return f"{config.model_type}: transformers has no causal language model of this type"
    if (why := plain_reason(config)) is None:
        return None
    missing = [name for name in PLAIN_NEEDS if name not in inspect.signature(kind.forward).parameters]
    lacks = [f"its forward takes no {name}" for name in missing]
    if getattr(config, "is_decoder", None) is False:
        lacks.append("is_decoder = false of its config: its tokens see later ones")
    return f"{kind.__name__} can neither be trained nor run in this process: {why}, and {lacks[0]}" if lacks else None


def check_family(config: PreTrainedConfig) -> None:
    """Raises SleuthError for a `family_problem`."""
    if problem := family_problem(config):
        raise SleuthError(f"{problem}; {WORKING}")


def plain_reason(config: PreTrainedConfig, *, trains: bool = True) -> str | None:
    """Why a model with this config runs or, with `trains`, is trained the plain way, by transformers' own forward over
    whole rows; None if prefix trees and the paged cache compute it."""
    text, kind = config.get_text_config(), _causal_class(config)
    problems = _attention_problems(text, kind is not None and kind._supports_attention_backend)
    return next(problems, None) or (next(_logits_problems(text), None) if trains else None)


def plain_line(config: PreTrainedConfig, *, trains: bool = True) -> str | None:
    """A line on what the plain way makes slow of a model that runs and, with `trains`, is trained; None if nothing."""
    kind, samples = type(config).__name__.removesuffix("Config"), plain_reason(config, trains=False)
    if (why := plain_reason(config, trains=trains)) is None:
        return None
    slow = [f"updates about {SLOWER_UPDATES} times"] if trains else []
    slow += [f"rollouts in this process about {SLOWER_ROLLOUTS} times"] if samples else []
    return f"{kind} is computed the plain way, {' and '.join(slow)} slower on a CPU: {why}"


def _causal_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    return cast("type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))


def _attention_problems(config: PreTrainedConfig, replaceable: bool) -> Iterator[str]:
    """Why a layer is not causal attention, with or without a window, that can be replaced."""
    layers = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    if other := next((layer for layer in layers if layer not in LAYER_TYPES), None):
        yield f"it has layers of {other}, and only attention is computed over packed texts"
    if not replaceable:
        yield "its attention is not replaceable"
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
