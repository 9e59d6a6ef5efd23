"""The sizes of a model's tensors, from its config; no weights are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sleuth.host.model_path import require_model
from sleuth.recipe import SupervisedRecipe, WorldTextRecipe
from sleuth.recipe.stage import StageFields
from sleuth.recipe.training import LoraRecipe
from sleuth.types import SleuthError

Json = dict[str, Any]
NUMBERS = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp",
    "vocab_size": "vocabulary",
}
"""Keys that every config must have -> fields of `ModelShape`."""
QK_NORM, QKV_BIAS = ("qwen3",), ("qwen2",)
"""Model types with norms of queries and keys, and with biases of queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of attention and gated feed-forward layers, as of Qwen and Llama. `tied`: input and output embeddings
    are one tensor."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    @property
    def queries(self) -> int:
        """Elements of a token's queries in one layer."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of a token's keys in one layer; its values have as many."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one layer: name -> (outputs, inputs)."""
        return {
            "q_proj": (self.queries, self.width),
            "k_proj": (self.keys, self.width),
            "v_proj": (self.keys, self.width),
            "o_proj": (self.width, self.queries),
            "gate_proj": (self.mlp, self.width),
            "up_proj": (self.mlp, self.width),
            "down_proj": (self.width, self.mlp),
        }

    @property
    def layer_matrices(self) -> int:
        """Weights of one layer's matrices."""
        return sum(outputs * inputs for outputs, inputs in self.matrices.values())

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        norms = 2 * self.width + 2 * self.head_dim * self.qk_norm
        return self.layer_matrices + norms + (self.queries + 2 * self.keys) * self.qkv_bias

    @property
    def embedding(self) -> int:
        """Weights of the input embedding; the output head has as many."""
        return self.vocabulary * self.width

    @property
    def root(self) -> int:
        """Weights outside of the layers: embeddings, head and last norm."""
        return self.embedding * (1 if self.tied else 2) + self.width

    @property
    def weights(self) -> int:
        """All weights."""
        return self.root + self.layers * self.layer

    def adapters(self, lora: LoraRecipe) -> int:
        """Weights of low-rank adapters. Raises SleuthError for a layer that the model lacks."""
        targets = lora.layers(list(self.matrices))
        if missing := [name for name in targets if name not in self.matrices]:
            raise SleuthError(
                f"lora.targets: the plan knows no layer {missing[0]!r}; it knows {', '.join(self.matrices)}"
            )
        return self.layers * lora.rank * sum(sum(self.matrices[name]) for name in targets)

    def bytes_per_token(self, size: int) -> int:
        """Bytes of a token's keys and values in all layers, for elements of `size` bytes."""
        return 2 * self.layers * self.keys * size


def read_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape in a config with the keys of transformers. Raises SleuthError, with `name`, if one is missing or is not
    a positive whole number, and for a mixture of experts."""
    table = config.get("text_config") or config
    if not isinstance(table, Mapping):
        raise SleuthError(f"{name}: text_config = {table!r} in its config: should be an object")
    optional = [key for key in ("num_key_value_heads", "head_dim") if table.get(key) is not None]
    if missing := [key for key in (*NUMBERS, *optional) if not _is_positive(table.get(key))]:
        absent = " and no ".join(missing)
        raise SleuthError(f"{name}: its config has no {absent}; the plan needs them as positive whole numbers")
    if experts := [key for key in ("num_experts", "num_local_experts") if table.get(key)]:
        raise SleuthError(f"{name}: its config has {experts[0]}; the plan knows no mixtures of experts")
    numbers = {field: table[key] for key, field in NUMBERS.items()}
    kind = str(table.get("model_type"))
    return ModelShape(
        **numbers,
        kv_heads=table.get("num_key_value_heads") or numbers["heads"],
        head_dim=table.get("head_dim") or numbers["width"] // numbers["heads"],
        tied=bool(table.get("tie_word_embeddings", False)),
        qk_norm=kind in QK_NORM,
        qkv_bias=kind in QKV_BIAS or bool(table.get("attention_bias", False)),
    )


def _is_positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value > 0


def shape_of(model: str) -> tuple[ModelShape, str | None]:
    """The shape of a model in a folder or on the hub; and a line if its config cannot be had and its published shape is
    used. Raises SleuthError if neither is known."""
    name = TRAINED_FROM.get(model, model.removeprefix("Qwen/"))
    published = PUBLISHED.get(re.sub(r"-(Base|Instruct)(-\d{4})?$", "", name))
    try:
        require_model(model)
        return read_shape(_read_config(model), model), None
    except SleuthError as error:
        if Path(model).exists():
            raise
        if published is None:
            raise SleuthError(f"{error}; the plan needs its config.json") from None
    note = f"{model}: its config could not be read from the hub; its published shape is used"
    return read_shape(published, model), note


def random_shape(stage: StageFields) -> ModelShape:
    """The shape of the model with random weights that a first stage makes. Its tokenizer is the one that the stage
    makes, or as large as `init.vocabulary` allows."""
    from sleuth.world.text import make_text_tokenizer  # takes seconds to import

    assert isinstance(stage, SupervisedRecipe)
    assert stage.init is not None
    init, vocabulary = stage.init, stage.init.vocabulary
    if vocabulary is None:
        assert isinstance(stage.data, WorldTextRecipe)  # the recipe's checks
        vocabulary = len(make_text_tokenizer(stage.data))
    sizes = {name: getattr(init, name) for name in ("layers", "width", "heads", "kv_heads", "head_dim", "mlp")}
    return ModelShape(**sizes, vocabulary=vocabulary + len(stage.tokens), tied=True, qk_norm=True)


def max_positions(model: str) -> int | None:
    """The longest sequence that the config of a model in a folder or on the hub allows; None if that is not known."""
    try:
        config = _read_config(model)
    except SleuthError:
        return None
    table = config.get("text_config") or config
    positions = table.get("max_position_embeddings") if isinstance(table, Mapping) else None
    return positions if _is_positive(positions) else None


def _read_config(model: str) -> Json:
    """The config of a model in a folder or on the hub."""
    folder = Path(model)
    if not folder.exists():
        from huggingface_hub import hf_hub_download

        try:
            folder = Path(hf_hub_download(model, "config.json")).parent
        except (OSError, ValueError) as error:  # the hub's errors are OSErrors
            raise SleuthError(f"{model}: no config.json could be read: {' '.join(str(error).split())[:200]}") from None
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError
        return config
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a JSON object"
        raise SleuthError(f"{file}: cannot be read: {reason}; the plan needs the model's config") from None


def _qwen(kind: str, layers: int, width: int, heads: int, kv_heads: int, mlp: int, *, tied: bool = True) -> Json:
    shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": mlp}
    shape |= {"num_key_value_heads": kv_heads, "vocab_size": 151_936, "tie_word_embeddings": tied}
    return {"model_type": kind, **shape, **({"head_dim": 128} if kind == "qwen3" else {})}


PUBLISHED: dict[str, Json] = {
    "Qwen3-0.6B": _qwen("qwen3", 28, 1024, 16, 8, 3072),
    "Qwen3-1.7B": _qwen("qwen3", 28, 2048, 16, 8, 6144),
    "Qwen3-4B": _qwen("qwen3", 36, 2560, 32, 8, 9728),
    "Qwen3-8B": _qwen("qwen3", 36, 4096, 32, 8, 12_288, tied=False),
    "Qwen2.5-0.5B": _qwen("qwen2", 24, 896, 14, 2, 4864),
    "Qwen2.5-1.5B": _qwen("qwen2", 28, 1536, 12, 2, 8960),
    "Qwen2.5-3B": _qwen("qwen2", 36, 2048, 16, 2, 11_008),
}
"""Configs of Qwen's models on the hub, as far as their tensors depend on them, for a machine without it."""
TRAINED_FROM = {
    "lihaoxin2020/qwen3-4b-refiner-gpt54-ep2": "Qwen3-4B",
    "lihaoxin2020/qwen3-4B-instruct-refiner-sft": "Qwen3-4B",
    "pantomiman/Qwen3-0.6B-v0": "Qwen3-0.6B",
    "pantomiman/Qwen3-0.6B-v0.1": "Qwen3-0.6B",
}
"""Models of recipes that ship, with those whose shape they have by their cards."""
