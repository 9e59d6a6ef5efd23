"""The tensors that a model has by its config.json: what they are called, how large they are, which are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.types import SleuthError

WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What data parallelism, torch.compile and a trainer's own module put before every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """`shapes` has each tensor once; `tied` has the further names of some of them: {"lm_head.weight":
    "model.embed_tokens.weight"}."""

    folder: Path
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]

    def naming(self, names: Sequence[str], source: Path) -> dict[str, str]:
        """Name in the model -> name in the shards, tied names only where they are there."""
        candidates = list(_renamings(names))
        for renamed in candidates:
            if self.shapes.keys() <= renamed.keys() <= self.shapes.keys() | self.tied.keys():
                return renamed
        nearest = max(candidates, key=lambda renamed: len(renamed.keys() & self.shapes.keys()))
        raise SleuthError(f"{source}: {self._difference(nearest)}")

    def _difference(self, renamed: Mapping[str, str]) -> str:
        if any(".lora_" in name for name in renamed):
            return "holds LoRA weights beside the model's; merge them into the model first (peft: merge_and_unload)"
        missing = [name for name in self.shapes if name not in renamed]
        unexpected = [name for name in renamed if name not in self.shapes and name not in self.tied]
        parts = [_listed(names, word) for names, word in ((missing, "missing"), (unexpected, "unexpected")) if names]
        return f"is not the model that {self.folder / 'config.json'} describes: {'; '.join(parts)}"


def read_blueprint(folder: Path) -> Blueprint:
    """The model of a folder's config.json, without its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # a config of no known model fails wherever the model first misses something
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SleuthError(f"{folder / 'config.json'}: describes no causal language model: {reason[0]}") from None
    shapes: dict[str, tuple[int, ...]] = {}
    first_names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            shapes[name] = tuple(tensor.shape)
        else:
            tied[name] = first
    return Blueprint(folder=folder, shapes=shapes, tied=tied)


def _renamings(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Ways to read the names, new -> as saved: as they are, then with each wrapper that all of them share taken off;
    and each of these as the names of the model within the causal language model."""
    renamed: dict[str, str] | None = {name: name for name in names}
    while renamed:
        yield renamed
        yield {f"model.{name}": saved for name, saved in renamed.items()}
        renamed = _unwrapped(renamed)


def _unwrapped(renamed: Mapping[str, str]) -> dict[str, str] | None:
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in renamed):
            return {name.removeprefix(wrapper): saved for name, saved in renamed.items()}
    return None


def _listed(names: Sequence[str], word: str) -> str:
    tensors = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{tensors} {word} ({', '.join(names[:3])}{', ..' if len(names) > 3 else ''})"
