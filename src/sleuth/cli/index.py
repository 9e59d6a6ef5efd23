"""`sleuth index`: a corpus made searchable."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.cli.modes import Mode
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.retrieval.index_card import IndexCard
    from sleuth.retrieval.writing import Progress


ENCODING = frozenset({"kind", "encoder", "query_prefix", "passage_prefix", "pooling", "as_json"})
BM25 = Mode(uses=frozenset({"kind", "as_json"}), why="is for vectors, and a bm25 index has none; add --kind dense")
ADOPTED = Mode(uses=ENCODING | {"faiss"}, why="is for vectors that are made, and --faiss opens some that are there")
HYBRID = Mode(
    uses=ENCODING | {"vectors"}, why="opens an index as dense; leave it out to encode the corpus for a hybrid one"
)


def index(
    typed: typer.Context,
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="Passages: .jsonl, .jsonl.gz or .parquet, or hf://OWNER/NAME/FILE.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The index; one already there is replaced.")],
    kind: Annotated[Literal["bm25", "dense", "hybrid"], typer.Option(help="How passages are found.")] = "bm25",
    encoder: Annotated[
        str | None, typer.Option(metavar="MODEL", help="dense, hybrid: a sentence encoder's folder or hub id.")
    ] = None,
    query_prefix: Annotated[str | None, typer.Option(help="Put before a query; absent: the encoder's own.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="Put before a passage; absent: the encoder's own.")] = None,
    pooling: Annotated[
        Literal["mean", "cls", "max", "lasttoken"] | None, typer.Option(help="Absent: the encoder's own.")
    ] = None,
    vectors: Annotated[
        Literal["flat", "ivf-sq8"], typer.Option(help="Exact, 4 bytes a number; or approximate, 1 byte.")
    ] = "flat",
    faiss: Annotated[
        Path | None, typer.Option(metavar="FILE", help="dense: open this faiss index of CORPUS instead of encoding.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    r"""Index a corpus: rows {"id": "17", "contents": "\"Title\"\ntext"}.

    The corpus is streamed, whatever its size. The same command goes on where a killed one stopped. One that lies on
    the hub is download_from_hub into DIR.corpus first.
    """
    from sleuth.cli.watching import watched

    if kind == "bm25":
        BM25.require(typed)
    elif kind == "hybrid":
        HYBRID.require(typed)
    elif faiss is not None:
        ADOPTED.require(typed)
    if kind != "bm25" and encoder is None:
        raise SleuthError(f"--kind {kind}: name the encoder too: --encoder MODEL, a folder or a hub id")

    if kind != "bm25":  # before the encoder is loaded
        from sleuth.plan.inputs import require_file

        for file in (corpus, *([faiss] if faiss else [])):
            require_file(file)
    corpus = _corpus_here(corpus, folder)

    def build(progress: Progress) -> IndexCard:
        if kind == "bm25":
            from sleuth.retrieval.bm25 import build_index

            return build_index(corpus, folder, progress)
        from sleuth.retrieval.dense import adopt_vectors, build_dense
        from sleuth.retrieval.encoder import encoder_card
        from sleuth.retrieval.hybrid import build_hybrid

        card = encoder_card(str(encoder), query_prefix=query_prefix, passage_prefix=passage_prefix, pooling=pooling)
        if faiss is not None:
            return adopt_vectors(corpus, folder, card, faiss, progress)
        return (build_dense if kind == "dense" else build_hybrid)(corpus, folder, card, vectors, progress)

    with watched("index") as progress:
        total = _count_rows(corpus)
        card = build(lambda done: progress(done, max(done, total)))
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **card.as_json()}))
        return
    typer.echo(f"{folder}: {card.count:,} passages, {card.kind}")
    if card.encoder is not None:
        shown = f"queries begin with {card.encoder.query_prefix!r}, passages with {card.encoder.passage_prefix!r}"
        typer.echo(f"encoder {card.encoder.model}: {card.encoder.width} numbers; {shown}")
    typer.echo(f'Next: sleuth search {folder} "some words"')


def _corpus_here(corpus: Path, folder: Path) -> Path:
    """The corpus as a file of this machine. That of the hub is kept beside the index: an index that was killed is gone
    on with from there, and one that is adopted reads its passages there."""
    from sleuth.cli.watching import watched
    from sleuth.data.hub import HubLocation, download_from_hub
    from sleuth.data.rows import ENDINGS

    place = HubLocation.read(corpus)
    if place is None:
        return corpus
    if place.path and not place.path.endswith(ENDINGS):
        raise SleuthError(f"{place}: unknown format; the name should end in {', '.join(ENDINGS)}")
    return download_from_hub(place, folder.with_name(f"{folder.name}.corpus"), watched)


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
