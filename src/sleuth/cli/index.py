"""`sleuth index`: a corpus made searchable."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer


def index(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="Passages: .jsonl, .jsonl.gz or .parquet.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The index; one already there is replaced.")],
    kind: Annotated[Literal["bm25"], typer.Option(help="How passages are found.")] = "bm25",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    r"""Index a corpus: rows {"id": "17", "contents": "\"Title\"\ntext"}."""
    from sleuth.cli.watching import watched
    from sleuth.retrieval.bm25 import build_index

    build = {"bm25": build_index}[kind]
    with watched("index") as progress:
        total = _count_rows(corpus)
        card = build(corpus, folder, lambda done: progress(done, max(done, total)))
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **asdict(card)}))
        return
    typer.echo(f"{folder}: {card.count:,} passages, {card.kind}")
    typer.echo(f'Next: sleuth search {folder} "some words"')


def _count_rows(corpus: Path) -> int:
    """How many passages to expect: lines counted without reading them. 0 if the file cannot be read."""
    import pyarrow.parquet

    try:
        if corpus.suffix == ".parquet":
            return pyarrow.parquet.read_metadata(corpus).num_rows
        with gzip.open(corpus) if corpus.suffix == ".gz" else corpus.open("rb") as lines:
            return sum(block.count(b"\n") for block in iter(lambda: lines.read(2**20), b""))
    except (OSError, EOFError, zlib.error, pyarrow.ArrowException):  # the build will say what is wrong with it
        return 0
