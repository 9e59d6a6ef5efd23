"""Low-rank adapters (LoRA, arXiv:2106.09685): frozen matrices, and beside each a small trained product.

The layers are peft's, put into the model in place: engine, learner and scorer all compute with them. Saves hold the
model with the products added in, as any loader expects it, and the adapters by themselves in peft's format beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.types import SleuthError

ADAPTER = "adapter"
"""The folder of a checkpoint that holds the adapters, and peft's name for them is the default one."""
PREFIX = "base_model.model."
"""Begins the names of weights in peft's files."""
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE = ".base_layer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Which matrices have a product B A beside them, of which rank, times alpha / rank.

    `Adapters(rank=16, alpha=32.0, targets=("q_proj", "v_proj"))`.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]


def add_adapters(model: PreTrainedModel, adapters: Adapters, *, seed: int) -> None:
    """Freeze the model and put fresh adapters into it, which change nothing yet: B is 0, A is drawn with `seed`.

    They have the dtype of the model; who steps them keeps masters. Raises SleuthError where peft is missing, and where
    the model has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise SleuthError('lora needs peft: pip install "sleuth[lora]"') from None
    config = LoraConfig(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=[*adapters.targets])  # type: ignore[arg-type]
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if missing := [target for target in adapters.targets if target not in names]:
        there = ", ".join(dict.fromkeys(names))
        raise SleuthError(f"lora.targets: {type(model).__name__} has no layer {missing[0]!r}; it has {there}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(model.device, model.dtype)
    model.eval()


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `add_adapters` was here."""
    return any(BASE in name for name, _ in model.named_parameters())


def load_adapters(model: PreTrainedModel, checkpoint: Path) -> None:
    """The adapters of a checkpoint into a model that has some of the same shape."""
    file = checkpoint / ADAPTER / WEIGHTS
    if not file.exists():
        raise SleuthError(f"{file}: is not there; this checkpoint was not trained with lora")
    found = load_file(file)
    own = {_name_in_file(name): weight for name, weight in _adapters_of(model)}
    if {name: weight.shape for name, weight in found.items()} != {name: weight.shape for name, weight in own.items()}:
        raise SleuthError(f"{file}: its adapters are not those of the recipe; lora must stay as it was")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(found[name])


def write_model(model: PreTrainedModel, folder: Path) -> None:
    """The model as a Hugging Face folder; where it has adapters, with these added in, and by themselves in `adapter`,
    which peft reads with the model that they were trained on."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, state_dict=merged_state(model))
    (folder / ADAPTER).mkdir()
    config: Any = getattr(model, "peft_config")["default"]  # noqa: B009
    config.base_model_name_or_path = model.name_or_path
    config.inference_mode = True
    config.save_pretrained(folder / ADAPTER)
    weights = {_name_in_file(name): weight.detach().cpu().contiguous() for name, weight in _adapters_of(model)}
    save_file(weights, folder / ADAPTER / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state of the model without adapters that computes the same: W + alpha / rank B A, added in fp32."""
    state = {name: value for name, value in model.state_dict().items() if ".lora_" not in name}
    for name, module in model.named_modules():
        if f"{name}{BASE}weight" in state:
            layer: Any = module
            product = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float()
            weight = state[f"{name}{BASE}weight"]
            state[f"{name}{BASE}weight"] = (weight.float() + layer.scaling["default"] * product).to(weight.dtype)
    return {name.replace(BASE, "."): value for name, value in state.items()}


def _adapters_of(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    return ((name, weight) for name, weight in model.named_parameters() if ".lora_" in name)


def _name_in_file(name: str) -> str:
    """`model.layers.0.mlp.up_proj.lora_A.default.weight` -> `base_model.model.model.layers...up_proj.lora_A.weight`."""
    return PREFIX + name.replace(".default.", ".")
