"""`sleuth merge`: converts the shards of another trainer, or a Hugging Face folder, into a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.cli.options import AsJson
from sleuth.types import SleuthError


def merge(
    shards: Annotated[
        Path,
        typer.Argument(metavar="SHARDS", help="A verl FSDP actor folder, a Hugging Face folder, or a .pt state dict."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The Hugging Face folder; it must be new or empty.")],
    config: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with config.json and tokenizer, where SHARDS has none."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="Cast the weights. [default: as saved]")
    ] = None,
    untie: Annotated[
        bool,
        typer.Option("--untie", help="Write output weights that the model ties to its input, for vLLM on a CPU."),
    ] = False,
    max_shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Largest file to write: 500MB, 4GB.")] = "2GB",
    as_json: AsJson = False,
) -> None:
    """Convert FSDP shards to a Hugging Face folder.

    SHARDS may be such a folder too, to cast or untie it. Names and shapes are checked against the model's config.json
    before anything is written.
    """
    if not shards.exists():
        raise SleuthError(f"{shards}: no such file or folder")

    import torch

    from sleuth.cli.progress import progress_bar
    from sleuth.convert import merge_shards
    from sleuth.memory import parse_size
    from sleuth.runs.disk import shown

    with progress_bar("merge") as progress:
        merged = merge_shards(
            shards,
            out,
            config=config,
            dtype=getattr(torch, dtype) if dtype else None,
            untie=untie,
            max_file_bytes=parse_size(max_shard_size),
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps({"folder": str(out), **asdict(merged)}))
        return
    files = "1 file" if merged.files == 1 else f"{merged.files} files"
    counts = f"{merged.tensors:,} tensors, {merged.parameters:,} parameters"
    typer.echo(f"{out}: {counts}, {merged.dtype}, {shown(merged.bytes)} in {files}")
    typer.echo(f"Next: sleuth eval {out} --questions FILE")
