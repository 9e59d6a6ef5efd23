"""`sleuth merge` and `sleuth export`: the shards of another trainer as a Hugging Face folder, and a checkpoint as a
file for other programs."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from typer import Argument, Option

from sleuth.terminal import options
from sleuth.terminal.inputs import prepare_out_file
from sleuth.terminal.tables import count_of, show
from sleuth.types import SleuthError


def merge(
    shards: Annotated[
        Path, Argument(metavar="SHARDS", help="A verl FSDP actor folder, a Hugging Face folder, or a .pt state dict.")
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="The Hugging Face folder; it must be new or empty.")],
    config: Annotated[
        Path | None, Option(metavar="DIR", help="Folder with config.json and tokenizer, where SHARDS has none.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, Option(help="Cast the weights. [default: as saved]")
    ] = None,
    untie: Annotated[
        bool, Option("--untie", help="Write output weights that the model ties to its input, for vLLM on a CPU.")
    ] = False,
    like: Annotated[
        Path | None, Option(metavar="RECIPE", help="Write the protocol of this recipe, and a model card, into OUT.")
    ] = None,
    overrides: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="With --like: change one value.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Convert FSDP shards to a Hugging Face folder.

    SHARDS may be such a folder too, to cast or untie it. Names and shapes are checked against the model's config.json
    before anything is written. With a protocol, `sleuth eval` and `sleuth serve` ask the model as it was trained: the
    one that --like gives, or else that of SHARDS, whose card is kept too.
    """
    from sleuth.convert import files_of_weights
    from sleuth.recipe import load_recipe

    files_of_weights(shards)
    if like is None and overrides:
        raise SleuthError(f"--set {overrides[0]}: changes the recipe of --like RECIPE; name that too")
    recipe = None if like is None else load_recipe(like, overrides or ())

    import torch

    from sleuth.cite.dialect import refines
    from sleuth.convert.merge import config_folder, merge_shards, protocol_of_recipe
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.host.cards import prepare_card
    from sleuth.host.disk import shown
    from sleuth.learn.models import load_outline
    from sleuth.runs.checkpoints import CARD
    from sleuth.runs.model_card import converted_card
    from sleuth.runs.progress import progress_bar

    home = config_folder(shards, config)
    protocol, card = None, None
    if recipe is not None:
        protocol = protocol_of_recipe(recipe, load_outline(str(home)))
        prepare_card(recipe.model)
    elif config is None and (protocol := ProtocolCard.read(home)) is not None and (home / CARD).is_file():
        card = (home / CARD).read_text(encoding="utf-8")
    if protocol is not None and card is None:
        card = converted_card(out, source=shards, protocol=protocol, recipe=recipe)
    with progress_bar("merge") as progress:
        merged = merge_shards(
            shards,
            out,
            config=config,
            dtype=getattr(torch, dtype) if dtype else None,
            untie=untie,
            protocol=protocol,
            card=card,
            progress=progress,
        )
    record: dict[str, Any] = {"folder": str(out), **asdict(merged)}
    counts = f"{merged.tensors:,} tensors, {merged.parameters:,} parameters"
    lines = [f"{out}: {counts}, {merged.dtype}, {shown(merged.bytes)} in {count_of(merged.files, 'file')}"]
    if protocol is not None:
        record["protocol"] = protocol.hash
        lines.append(f"protocol {protocol.hash[:12]}: dialect {protocol.dialect.name}, prompt {protocol.prompt}")
    index = "" if protocol is None or refines(protocol.dialect) else " --index DIR"
    show(as_json, record, *lines, f"Next: sleuth eval {quote(str(out))} --questions FILE{index}")


INSTALL = "GGUF files are written with the package gguf: pip install 'sleuth[gguf]'"


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="A folder with the model: a checkpoint.")],
    gguf: Annotated[bool, Option("--gguf", help="Write a GGUF file, for llama.cpp and Ollama.")] = False,
    out: Annotated[
        Path | None, Option(metavar="FILE.gguf", help="The file to write. [default: NAME-DTYPE.gguf here]")
    ] = None,
    dtype: Annotated[
        Literal["f32", "f16", "bf16"] | None, Option(help="Cast the matrices. [default: as saved]")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a model as one file for llama.cpp and Ollama.

    Qwen3, Qwen2 and Llama models with byte-level BPE, whose texts llama.cpp splits into the same tokens. The protocol
    card is written beside the file, FILE.protocol.json, and FILE.md says what a client must do: the search loop is not
    part of the file.
    """
    if not gguf:
        raise SleuthError("name the format to write: --gguf")
    if not model.is_dir():
        raise SleuthError(f"{model}: no such folder")
    if out is not None and out.suffix != ".gguf":
        raise SleuthError(f"--out {out}: the name of a GGUF file ends in .gguf")
    if find_spec("gguf") is None:
        raise SleuthError(INSTALL)
    prepare_out_file(out, example="model.gguf")

    from sleuth.convert.gguf_file import export_gguf
    from sleuth.host.disk import shown
    from sleuth.runs.model_card import LOOP
    from sleuth.runs.progress import progress_bar

    with progress_bar("export") as progress:
        written = export_gguf(model, out, dtype=dtype, progress=progress)
    protocol = written.protocol
    names = ("architecture", "tensors", "parameters", "dtype", "bytes")
    record = {"file": str(written.file), **{name: getattr(written, name) for name in names}, "card": str(written.card)}
    carried = f"no protocol card: {model} has no protocol.json"
    if protocol is not None:
        record |= {"protocol": protocol.hash, "protocol_file": str(written.protocol_file)}
        carried = f"protocol {protocol.hash[:12]}: {written.protocol_file}"
    counts = f"{written.tensors:,} tensors, {written.parameters:,} parameters"
    show(
        as_json,
        record,
        f"{written.file}: {written.architecture}, {counts}, {written.dtype}, {shown(written.bytes)}",
        carried,
        LOOP,
        f"Next: llama-server -m {written.file} -c {written.context}; for Ollama, the Modelfile in {written.card}",
    )
