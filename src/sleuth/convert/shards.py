"""The weights of a checkpoint as its trainer saved them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sleuth.convert.inert import load_inert
from sleuth.types import SleuthError

RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
NESTS = ("model", "state_dict", "module")
"""Under which of these a bare file may keep its state dict, beside an optimiser's and a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A state dict for each rank that saved one, rank 0 first; all of them have the same names."""

    source: Path
    ranks: tuple[Mapping[str, Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the tensors are called, in the order in which they were saved."""
        return tuple(self.ranks[0])

    def entries(self, name: str) -> list[Any]:
        """What every rank holds under a name."""
        return [rank[name] for rank in self.ranks]


def open_shards(source: Path) -> Shards:
    """Open a verl actor folder or a bare state dict. Nothing but names and layouts is read yet."""
    if source.is_dir():
        paths = _rank_files(source)
        ranks = tuple(load_inert(path) for path in paths)
    elif source.is_file():
        paths, ranks = [source], (_unnested(load_inert(source)),)
    else:
        raise SleuthError(f"{source}: is not there; give a verl actor folder or a .pt file")
    for path, rank in zip(paths, ranks, strict=True):
        _check_names(path, rank, paths[0], ranks[0])
    return Shards(source=source, ranks=ranks)


def _rank_files(folder: Path) -> list[Path]:
    """The files of ranks 0 to N - 1."""
    matches = [match for path in folder.iterdir() if (match := RANK_FILE.fullmatch(path.name))]
    sizes = sorted({int(match[1]) for match in matches})
    if not sizes:
        hint = f"; did you mean {folder / 'actor'}?" if (folder / "actor").is_dir() else ""
        raise SleuthError(f"{folder}: holds no model_world_size_N_rank_R.pt, as verl's FSDP trainer writes them{hint}")
    if len(sizes) > 1:
        saved = " and of ".join(map(str, sizes))
        raise SleuthError(f"{folder}: holds shards of {saved} ranks; move all but one set away")
    [size] = sizes
    missing = sorted(set(range(size)) - {int(match[2]) for match in matches})
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", .." if len(missing) > 5 else "")
        raise SleuthError(f"{folder}: {len(missing)} of {size} ranks are missing: {listed}")
    return [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]


def _unnested(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((found[nest] for nest in NESTS if isinstance(found.get(nest), Mapping)), found)


def _check_names(path: Path, rank: Mapping[str, Any], first_path: Path, first: Mapping[str, Any]) -> None:
    if not rank:
        raise SleuthError(f"{path}: holds no tensors")
    for name, value in rank.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise SleuthError(f"{path}: {name!r} is a {type(value).__name__}; a state dict has names and tensors only")
    different = sorted(rank.keys() ^ first.keys())
    if different:
        raise SleuthError(f"{path}: {different[0]} is only here or only in {first_path.name}; save all ranks again")
