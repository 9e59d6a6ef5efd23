"""Merges shards into a Hugging Face folder, with the protocol of a recipe."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from sleuth.answers.factory import answer_scorer_of, reward_spec_of
from sleuth.convert.layouts import WholeTensor, assemble_tensor
from sleuth.convert.shards import Blueprint, Shards, open_shards, read_blueprint
from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.atomic import replacing_folder, write_text
from sleuth.host.checksums import write_checksums
from sleuth.host.disk import SLACK, recognising_full_disk, require_free
from sleuth.host.model_path import COMPANIONS
from sleuth.learn.models import Outline
from sleuth.recipe import GrpoRecipe, QuestionsRecipe, Recipe
from sleuth.runs.checkpoints import CARD
from sleuth.types import SleuthError

MAX_FILE_BYTES = 2 * 10**9
"""Of the tensors of a file, which are in memory while it is written; a larger tensor has a file of its own."""
CONFIG = "config.json"
ROWS_BYTES = 2**24
"""Approximate number of bytes of a block of rows."""
INDEX = "model.safetensors.index.json"


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
        files = write_weights(partial, weights, dtype=dtype, progress=progress)
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
        if whole.dtype.is_complex:
            raise SleuthError(f"{shards.source}: {name} is {dtype_name(whole.dtype)}, and weights are real numbers")
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


def stored_dtype(whole: WholeTensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which a tensor is written: its own, or `dtype` if it is floating-point and `dtype` is given."""
    return dtype if dtype is not None and whole.dtype.is_floating_point else whole.dtype


def stored_bytes(whole: WholeTensor, dtype: torch.dtype | None) -> int:
    """Bytes of a tensor on disk."""
    return whole.numel * stored_dtype(whole, dtype).itemsize


def write_weights(
    folder: Path,
    weights: Mapping[str, WholeTensor],
    *,
    dtype: torch.dtype | None,
    progress: Callable[[int, int], None],
) -> int:
    """Writes `model*.safetensors`, with an index if there are several; returns their number."""
    files = list(_files(weights, dtype))
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    else:
        total = sum(stored_bytes(whole, dtype) for whole in weights.values())
        weight_map = {tensor: name for name, shard in zip(names, files, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    done = 0
    for name, shard in zip(names, files, strict=True):
        tensors: dict[str, torch.Tensor] = {}
        for tensor, whole in shard.items():
            rows = whole.rows(0, whole.num_rows).reshape(whole.shape)
            tensors[tensor] = rows.to(stored_dtype(whole, dtype)).contiguous()
            done += 1
            progress(done, len(weights))
        save_file(tensors, folder / name, metadata={"format": "pt"})
    return len(files)


def _files(weights: Mapping[str, WholeTensor], dtype: torch.dtype | None) -> Iterator[dict[str, WholeTensor]]:
    """The tensors of each file, in order."""
    file: dict[str, WholeTensor] = {}
    file_bytes = 0
    for name, whole in weights.items():
        size = stored_bytes(whole, dtype)
        if file and file_bytes + size > MAX_FILE_BYTES:
            yield file
            file, file_bytes = {}, 0
        file[name] = whole
        file_bytes += size
    yield file


def row_blocks(whole: WholeTensor, *, together: int = 1) -> Iterator[torch.Tensor]:
    """Yields the rows of a tensor in blocks of about ROWS_BYTES, each a multiple of `together` rows."""
    row = math.prod(whole.shape[1:]) * whole.dtype.itemsize
    step = max(1, ROWS_BYTES // max(row * together, 1)) * together
    for start in range(0, whole.num_rows, step):
        yield whole.rows(start, min(start + step, whole.num_rows))


def protocol_of_recipe(recipe: Recipe, model: Outline) -> ProtocolCard:
    """The protocol and reward of a recipe's last stage that searches or refines with reinforcement learning. The corpus
    is recorded if the recipe's index is here, else what it requires of a retriever. Raises SleuthError without such a
    stage."""
    stages = reversed(recipe.stages_of(GrpoRecipe).values())
    stage = next((stage for stage in stages if stage.env.adopts(stage.env.plain_dialect(), ())), None)
    if stage is None:
        raise SleuthError(
            f"--like {recipe.name}: has no stage of kind grpo that searches or refines; name a recipe that has one"
        )
    env = stage.env
    index: Path | None = getattr(env, "index", None)
    if index is None or not index.is_dir():
        env = env.without_retriever()
    ask_with = stage.data.ask_with if isinstance(stage.data, QuestionsRecipe) else "question"
    setting = replace(env.setting(model.tokenizer, []), ask_with=ask_with)
    if setting.retriever_identity is None:
        setting = replace(setting, retriever_identity=env.required_identity)
    return setting.protocol(answer_scorer_of(stage.reward), stage.context, reward=reward_spec_of(stage.reward))
