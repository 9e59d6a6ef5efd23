"""Low-rank adapters (LoRA, arXiv:2106.09685): frozen matrices, each with a small trained product beside it.

The layers are peft's, injected in place, so engine, learner and scorer all compute with them. Saves contain the merged
model, which any loader reads, and the adapters separately in peft's format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.types import SleuthError

ADAPTER = "adapter"
"""The folder of a checkpoint with the adapters, which have peft's default name."""
PREFIX = "base_model.model."
"""Prefix of weight names in peft's files."""
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE = ".base_layer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """LoRA settings: `targets` name the matrices that get alpha / rank times B A.

    `Adapters(rank=16, alpha=32.0, targets=("q_proj", "v_proj"))`.
    """

    rank: int
    alpha: float
    targets: Sequence[str]


def add_adapters(model: PreTrainedModel, adapters: Adapters, *, seed: int) -> None:
    """Freezes the model and injects new adapters, which change nothing yet: B is 0, A is random by `seed`.

    They have the model's dtype. Raises SleuthError if peft is not installed or the model has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise SleuthError('lora needs peft: pip install "sleuth[lora]"') from None
    sees = any("vision" in name for name, _ in model.named_modules())  # layers of the same names, which no text reaches
    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,  # type: ignore[arg-type]
        target_modules=[*adapters.targets],
        exclude_modules=".*vision.*" if sees else None,
    )
    require_targets(adapters.targets, adaptable_layers(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(model.device, model.dtype)
    model.eval()


def adaptable_layers(model: PreTrainedModel) -> list[str]:
    """The names of the linear layers that can have adapters: all but the output head, whose logits are computed without
    calling it."""
    head = model.get_output_embeddings()
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    return list(dict.fromkeys(name.rpartition(".")[2] for name in linear))


def require_targets(targets: Sequence[str], layers: Sequence[str]) -> None:
    """Raises SleuthError for a target that is not among the layers of a model that can have adapters."""
    if missing := [target for target in targets if target not in layers]:
        raise SleuthError(
            f"lora.targets: the model has no layer {missing[0]!r} that can have adapters; it has {', '.join(layers)}"
        )


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether the model has adapters."""
    return any(BASE in name for name, _ in model.named_parameters())


def load_adapters(model: PreTrainedModel, checkpoint: Path) -> None:
    """Loads a checkpoint's adapters into a model with adapters. Raises SleuthError if that fails."""
    file = checkpoint / ADAPTER / WEIGHTS
    if not file.exists():
        raise SleuthError(f"{file}: does not exist; this checkpoint was not trained with lora")
    saved = load_file(file)
    own = adapter_state(model)
    if {name: weight.shape for name, weight in saved.items()} != {name: weight.shape for name, weight in own.items()}:
        raise SleuthError(f"{file}: its adapters do not match the recipe; lora must stay unchanged")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(saved[name])


def write_model(model: PreTrainedModel, folder: Path) -> None:
    """Writes the model as a Hugging Face folder. Adapters are merged into its weights and also written to `adapter`,
    which peft loads onto the base model."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, state_dict=merged_state(model))
    write_adapters(model, folder / ADAPTER)


def write_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Writes the adapters of a model into a new folder, in peft's format."""
    folder.mkdir()
    config: Any = getattr(model, "peft_config")["default"]  # noqa: B009
    config.base_model_name_or_path = model.name_or_path
    config.inference_mode = True
    config.save_pretrained(folder)
    weights = {name: weight.detach().cpu().contiguous() for name, weight in adapter_state(model).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def adapter_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The adapters' weights by their names in peft's files; empty without any.

    `model.layers.0.mlp.up_proj.lora_A.default.weight` is `base_model.model.model.layers...up_proj.lora_A.weight` there.
    """
    named = ((name, weight) for name, weight in model.named_parameters() if ".lora_" in name)
    return {PREFIX + name.replace(".default.", "."): weight for name, weight in named}


def base_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state of the model that the adapters were added to."""
    return {name: weight for name, (weight, _) in adapted_state(model).items()}


def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state of an equivalent model without adapters: W + alpha / rank B A, added in fp32."""
    return {name: merged_weight(*parts) for name, parts in adapted_state(model).items()}


def adapted_state(model: PreTrainedModel) -> dict[str, tuple[Tensor, Any]]:
    """`base_state`, each weight with the layer that adds adapters to it, or None."""
    return {
        name.replace(BASE, "."): (
            weight,
            model.get_submodule(name.partition(BASE)[0]) if name.endswith(f"{BASE}weight") else None,
        )
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }


@torch.no_grad()
def merged_weight(weight: Tensor, layer: Any, read: Callable[[Tensor], Tensor] = lambda weight: weight) -> Tensor:
    """A weight of `adapted_state` with the adapters of its layer added; `read` is what reads each tensor."""
    weight = read(weight)
    if layer is None:
        return weight
    product = read(layer.lora_B["default"].weight).float() @ read(layer.lora_A["default"].weight).float()
    return (weight.float() + layer.scaling["default"] * product).to(weight.dtype)
