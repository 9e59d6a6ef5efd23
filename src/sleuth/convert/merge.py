"""Merges shards into a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.convert.layouts import WholeTensor, assemble_tensor
from sleuth.convert.shards import Blueprint, Shards, open_shards, read_blueprint
from sleuth.convert.weight_files import DTYPE_NAMES, row_blocks, stored_bytes, stored_dtype, write_weights
from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.atomic import replacing_folder, write_text
from sleuth.host.checksums import write_checksums
from sleuth.host.disk import SLACK, recognising_full_disk, require_free
from sleuth.host.model_path import COMPANIONS
from sleuth.runs.checkpoints import CARD
from sleuth.types import SleuthError

MAX_FILE_BYTES = 2 * 10**9
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was written. `dtype` is that of most parameters; `bytes` are those of all tensors, in `files` files."""

    ranks: int
    tensors: int
    parameters: int
    dtype: str
    bytes: int
    files: int


def merge_shards(
    source: Path,
    out: Path,
    *,
    config: Path | None = None,
    dtype: torch.dtype | None = None,
    untie: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
    protocol: ProtocolCard | None = None,
    card: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Merged:
    """Converts a verl FSDP actor folder, a Hugging Face folder or a bare state dict into a Hugging Face folder.

    `config` is the folder with config.json and tokenizer, if they are not beside the shards; `dtype` casts
    floating-point weights; `untie` writes tied weights under each of their names; `protocol` and the model card `card`
    are written beside them. Names, shapes and layouts are checked first, and `out` is created as a whole or not at all.
    Raises SleuthError.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SleuthError(f"{out}: already exists; name a new folder or an empty one")
    shards = open_shards(source)
    blueprint = read_blueprint(config_folder(source, config))
    if untie and not blueprint.tied:
        raise SleuthError(f"{blueprint.folder / CONFIG}: ties no weights, so there is nothing to untie")
    weights = assemble_weights(shards, blueprint)
    if untie:
        weights |= {name: weights[first] for name, first in blueprint.tied.items()}
    total = sum(stored_bytes(whole, dtype) for whole in weights.values())
    most = main_dtype(weights, dtype)
    folder = out.resolve()  # "." has no name for the temporary folder
    with replacing_folder(folder) as partial, recognising_full_disk(folder.parent):
        require_free(folder.parent, total + SLACK)
        files = write_weights(partial, weights, dtype=dtype, max_file_bytes=max_file_bytes, progress=progress)
        copy_companions(blueprint.folder, partial, most, untie=untie)
        if untie and (tied := read_blueprint(partial).tied):
            raise SleuthError(f"{blueprint.folder / CONFIG}: {', '.join(tied)} stays tied without tie_word_embeddings")
        if protocol is not None:
            protocol.write(partial)
        if card is not None:
            write_text(partial / CARD, card)
        write_checksums(partial)
    return Merged(
        ranks=len(shards.ranks),
        tensors=len(weights),
        parameters=sum(whole.numel for whole in weights.values()),
        dtype=dtype_name(most),
        bytes=total,
        files=files,
    )


def assemble_weights(shards: Shards, blueprint: Blueprint) -> dict[str, WholeTensor]:
    """The tensors of the model without tied names, in the order of the model."""
    shapes = {**blueprint.shapes, **{name: blueprint.shapes[first] for name, first in blueprint.tied.items()}}
    saved_names = blueprint.match_names(tuple(shards.ranks[0]), shards.source)
    wholes = {
        name: assemble_tensor([rank[saved] for rank in shards.ranks], shapes[name], f"{shards.source}: {saved}")
        for name, saved in saved_names.items()
    }
    for name, whole in wholes.items():
        if whole.dtype not in DTYPE_NAMES:
            dtype = dtype_name(whole.dtype)
            raise SleuthError(f"{shards.source}: {name} is {dtype}, which safetensors files do not support")
        if name in blueprint.tied and not _equal(whole, wholes[blueprint.tied[name]]):
            raise SleuthError(
                f"{shards.source}: {name} differs from {blueprint.tied[name]}, and {blueprint.folder / 'config.json'} "
                "ties them; if the model was trained untied, set tie_word_embeddings to false there"
            )
    return {name: wholes[name] for name in blueprint.shapes}


def _equal(one: WholeTensor, other: WholeTensor) -> bool:
    """Whether two tensors are equal; compares a few rows at a time to save memory."""
    return all(map(torch.equal, row_blocks(one), row_blocks(other)))


def main_dtype(weights: Mapping[str, WholeTensor], dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which most parameters are written."""
    counts: Counter[torch.dtype] = Counter()
    for whole in weights.values():
        counts[stored_dtype(whole, dtype)] += whole.numel
    return counts.most_common(1)[0][0]


def config_folder(source: Path, given: Path | None) -> Path:
    """The folder with the model's config.json: `given`, or one where trainers write it. Raises SleuthError."""
    home = source if source.is_dir() else source.parent
    folders = [given] if given is not None else [home / "huggingface", home]
    for folder in folders:
        if (folder / CONFIG).is_file():
            return folder
    if given is not None:
        raise SleuthError(f"{given}: has no {CONFIG}; --config must be a Hugging Face folder of the same model")
    tried = " or ".join(map(str, folders))
    raise SleuthError(f"no {CONFIG} in {tried}; name a Hugging Face folder of the same model with --config DIR")


def copy_companions(folder: Path, out: Path, dtype: torch.dtype, *, untie: bool = False) -> None:
    """Copies configuration and tokenizer. The copy of config.json gets `dtype`, in which transformers loads weights;
    with `untie`, it ties no embeddings."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if untie:
        config["tie_word_embeddings"] = False
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype_name(dtype)
    (out / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for pattern in COMPANIONS:
        for path in folder.glob(pattern):
            if path.is_file():
                copy = out / path.relative_to(folder)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")
