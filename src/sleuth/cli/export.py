"""`sleuth export`: writes a checkpoint as a file for other programs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.terminal import options
from sleuth.terminal.inputs import prepare_out_file
from sleuth.types import SleuthError

INSTALL = "GGUF files are written with the package gguf: pip install 'sleuth[gguf]'"


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder with the model: a checkpoint.")],
    gguf: Annotated[bool, typer.Option("--gguf", help="Write a GGUF file, for llama.cpp and Ollama.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.gguf", help="The file to write. [default: NAME-DTYPE.gguf here]")
    ] = None,
    dtype: Annotated[
        Literal["f32", "f16", "bf16"] | None, typer.Option(help="Cast the matrices. [default: as saved]")
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
    from sleuth.terminal.progress import progress_bar

    with progress_bar("export") as progress:
        written = export_gguf(model, out, dtype=dtype, progress=progress)
    protocol = written.protocol
    if as_json:
        figures = {name: getattr(written, name) for name in ("architecture", "tensors", "parameters", "dtype", "bytes")}
        carried = {"protocol": protocol.hash, "protocol_file": str(written.protocol_file)} if protocol else {}
        typer.echo(json.dumps({"file": str(written.file), **figures, "card": str(written.card), **carried}))
        return
    counts = f"{written.tensors:,} tensors, {written.parameters:,} parameters"
    typer.echo(f"{written.file}: {written.architecture}, {counts}, {written.dtype}, {shown(written.bytes)}")
    if protocol is None:
        typer.echo(f"no protocol card: {model} has no protocol.json")
    else:
        typer.echo(f"protocol {protocol.hash[:12]}: {written.protocol_file}")
    typer.echo(LOOP)
    typer.echo(
        f"Next: llama-server -m {written.file} -c {written.context}; for Ollama, the Modelfile in {written.card}"
    )
