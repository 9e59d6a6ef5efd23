"""Converts checkpoints of other trainers into Hugging Face folders, and of ours into GGUF files. Which files hold the
weights of a model, whole or in shards, is found here without importing torch."""

from __future__ import annotations

import re
from pathlib import Path

from sleuth.host.model_path import loaded_files
from sleuth.types import SleuthError

RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def files_of_weights(source: Path) -> list[Path]:
    """The files of a verl actor folder (rank 0 first), of a Hugging Face folder, or the one .pt file. Raises
    SleuthError if there are none, or if ranks are missing."""
    loaded_files(source)
    whole = sorted(source.glob("*.safetensors"))
    if whole and not any(source.glob("model_world_size_*_rank_*.pt")):
        return whole
    if source.is_dir():
        return _rank_files(source)
    if source.is_file():
        return [source]
    raise SleuthError(f"{source}: does not exist; name a verl actor folder, a Hugging Face folder or a .pt file")


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
