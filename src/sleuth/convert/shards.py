"""Sharded weights as their trainer saved them (`Shards`), and the tensors that the model needs (`Blueprint`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sleuth.convert import files_of_weights
from sleuth.convert.inert import load_inert
from sleuth.types import SleuthError

NESTED_KEYS = ("model", "state_dict", "module")
"""Keys under which a bare file may keep the model's state dict, beside that of an optimiser."""
WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Prefixes that data parallelism, torch.compile and a trainer's own module add to every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A state dict for each rank, rank 0 first; all have the same names."""

    source: Path
    ranks: tuple[Mapping[str, Any], ...]


def open_shards(source: Path) -> Shards:
    """Opens a verl actor folder, a Hugging Face folder or a bare state dict; reads only names and layouts. Raises
    SleuthError."""
    paths = files_of_weights(source)
    if source.is_dir() and paths[0].suffix == ".safetensors":
        return open_safetensors(source)
    ranks = tuple(load_inert(path) for path in paths) if source.is_dir() else (_unnested(load_inert(source)),)
    for path, rank in zip(paths, ranks, strict=True):
        _check_names(path, rank, paths[0], ranks[0])
    return Shards(source=source, ranks=ranks)


def open_safetensors(folder: Path) -> Shards:
    """The tensors of a Hugging Face folder, which stay on the disk until they are used. Raises SleuthError."""
    files, weights = sorted(folder.glob("*.safetensors")), dict[str, Any]()
    for file in files:
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise SleuthError(f"{file}: cannot be read ({error})") from None
    if not weights:
        raise SleuthError(f"{folder}: holds no tensors in .safetensors files")
    return Shards(source=folder, ranks=(weights,))


def _unnested(contents: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((contents[key] for key in NESTED_KEYS if isinstance(contents.get(key), Mapping)), contents)


def _check_names(path: Path, rank: Mapping[str, Any], first_path: Path, first: Mapping[str, Any]) -> None:
    if not rank:
        raise SleuthError(f"{path}: holds no tensors")
    for name, value in rank.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise SleuthError(f"{path}: {name!r} is a {type(value).__name__}; a state dict has names and tensors only")
    if different := sorted(rank.keys() ^ first.keys()):
        raise SleuthError(f"{path}: {different[0]} is only here or only in {first_path.name}; save all ranks again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The tensors of a model: `shapes` by name, and `tied` names of the same tensors: {"lm_head.weight":
    "model.embed_tokens.weight"}."""

    folder: Path
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]

    def match_names(self, names: Sequence[str], source: Path) -> dict[str, str]:
        """Name in the model -> name in the shards, including tied names that were saved. Raises SleuthError."""
        candidates = list(_renamings(names))
        for renamed in candidates:
            if self.shapes.keys() <= renamed.keys() <= self.shapes.keys() | self.tied.keys():
                return renamed
        nearest = max(candidates, key=lambda renamed: len(renamed.keys() & self.shapes.keys()))
        raise SleuthError(f"{source}: {self._difference(nearest)}")

    def _difference(self, renamed: Mapping[str, str]) -> str:
        if any(".lora_" in name for name in renamed):
            return "contains LoRA weights; merge them into the model first (peft: merge_and_unload)"
        missing = [name for name in self.shapes if name not in renamed]
        unexpected = [name for name in renamed if name not in self.shapes and name not in self.tied]
        parts = [_listed(names, word) for names, word in ((missing, "missing"), (unexpected, "unexpected")) if names]
        return f"is not the model that {self.folder / 'config.json'} describes: {'; '.join(parts)}"


def read_blueprint(folder: Path) -> Blueprint:
    """The model that the config.json of a folder describes. Raises SleuthError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # an invalid config can raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SleuthError(f"{folder / 'config.json'}: describes no causal language model: {reason[0]}") from None
    first_names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    firsts = {name: first_names.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    shapes = {name: tuple(tensors[name].shape) for name in first_names.values()}
    return Blueprint(folder=folder, shapes=shapes, tied={name: one for name, one in firsts.items() if one != name})


def _renamings(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields possible renamings, new name -> saved name: as saved, then without each wrapper that all names share; and
    each of these with "model." in front, for names of the inner model."""
    renamed: dict[str, str] | None = {name: name for name in names}
    while renamed:
        yield renamed
        yield {f"model.{name}": saved for name, saved in renamed.items()}
        wrapper = next((one for one in WRAPPERS if all(name.startswith(one) for name in renamed)), None)
        renamed = None if wrapper is None else {name.removeprefix(wrapper): saved for name, saved in renamed.items()}


def _listed(names: Sequence[str], word: str) -> str:
    tensors = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{tensors} {word} ({', '.join(names[:3])}{', ..' if len(names) > 3 else ''})"
