"""Shards in, a Hugging Face folder out."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.convert.layouts import whole_of
from sleuth.convert.shards import Blueprint, Shards, open_shards, read_blueprint
from sleuth.convert.tensor_parts import Whole
from sleuth.convert.weight_files import DTYPE_NAMES, stored_bytes, stored_dtype, write_weights
from sleuth.runs.atomic import replacing_folder
from sleuth.runs.disk import SLACK, recognising_full_disk, require_free
from sleuth.types import SleuthError

MAX_FILE_BYTES = 2 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was written. `dtype` is that of most parameters; `bytes` counts the tensors, in `files` files."""

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
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Merged:
    """Make a Hugging Face folder of a verl FSDP actor folder or of a bare state dict.

    `config` names the folder with config.json and tokenizer where they do not stand beside the shards; `dtype` casts
    floating-point weights. Names, shapes and layouts are checked before `out` is touched, and `out` appears whole or
    not at all. Raises SleuthError.
    """
    _refuse_occupied(out)
    shards = open_shards(source)
    blueprint = read_blueprint(config_folder(source, config))
    weights = _assembled(shards, blueprint)
    total = sum(stored_bytes(whole, dtype) for whole in weights.values())
    main_dtype = _main_dtype(weights, dtype)
    place = out.resolve()  # "." has no name to write aside under
    with replacing_folder(place) as partial, recognising_full_disk(place.parent):
        require_free(place.parent, total + SLACK)
        files = write_weights(partial, weights, dtype=dtype, max_file_bytes=max_file_bytes, progress=progress)
        copy_companions(blueprint.folder, partial, main_dtype)
    return Merged(
        ranks=len(shards.ranks),
        tensors=len(weights),
        parameters=sum(whole.count for whole in weights.values()),
        dtype=dtype_name(main_dtype),
        bytes=total,
        files=files,
    )


def _refuse_occupied(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SleuthError(f"{out}: is there already; name a new folder or an empty one")


def _assembled(shards: Shards, blueprint: Blueprint) -> dict[str, Whole]:
    """The model's tensors, each once, in the model's order."""
    shapes = {**blueprint.shapes, **{name: blueprint.shapes[first] for name, first in blueprint.tied.items()}}
    naming = blueprint.naming(shards.names, shards.source)
    wholes = {
        name: whole_of(shards.entries(saved), shapes[name], f"{shards.source}: {saved}")
        for name, saved in naming.items()
    }
    for name, whole in wholes.items():
        if whole.dtype not in DTYPE_NAMES:
            raise SleuthError(
                f"{shards.source}: {name} is {dtype_name(whole.dtype)}, which safetensors files cannot hold"
            )
        if name in blueprint.tied and not _same(whole, wholes[blueprint.tied[name]]):
            raise SleuthError(
                f"{shards.source}: {name} differs from {blueprint.tied[name]}, and {blueprint.folder / 'config.json'} "
                "ties them; if the model was trained untied, set tie_word_embeddings to false there"
            )
    return {name: wholes[name] for name in blueprint.shapes}


def _same(one: Whole, other: Whole) -> bool:
    """Compared a few rows at a time, so that no memory is needed."""
    step = 4096
    tops = range(0, one.height, step)
    blocks = ((whole.rows(top, min(top + step, one.height)) for whole in (one, other)) for top in tops)
    return all(torch.equal(*pair) for pair in blocks)


def _main_dtype(weights: Mapping[str, Whole], dtype: torch.dtype | None) -> torch.dtype:
    counts: Counter[torch.dtype] = Counter()
    for whole in weights.values():
        counts[stored_dtype(whole, dtype)] += whole.count
    return counts.most_common(1)[0][0]


CONFIG = "config.json"
COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*.jinja",
)


def config_folder(source: Path, given: Path | None) -> Path:
    """The folder with the model's config.json: the one that the user names, or one where the trainers put it."""
    home = source if source.is_dir() else source.parent
    places = [given] if given is not None else [home / "huggingface", home]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    if given is not None:
        raise SleuthError(f"{given}: holds no {CONFIG}; --config names a Hugging Face folder of the same model")
    tried = " or ".join(map(str, places))
    raise SleuthError(f"no {CONFIG} in {tried}; name a Hugging Face folder of the same model with --config DIR")


def copy_companions(folder: Path, out: Path, dtype: torch.dtype) -> None:
    """Copy configuration and tokenizer. The copy of config.json states `dtype`: transformers loads weights in it."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype_name(dtype)
    (out / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for pattern in COMPANIONS:
        for path in folder.glob(pattern):
            if path.is_file():
                copy = out / path.relative_to(folder)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`."""
    return str(dtype).removeprefix("torch.")
