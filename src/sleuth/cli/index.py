"""`sleuth index`: builds a search index of a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.terminal.inputs import require_unset
from sleuth.terminal.options import AsJson
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.retrieval.index_card import IndexCard
    from sleuth.retrieval.writing import Progress

FEW_PASSAGES = 50_000
"""Below that vectors stay exact by default: they take little memory, and quantised ones are not searched faster."""


def index(
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="Passages (.jsonl, .jsonl.gz, .parquet, .csv, .tsv, .json), BEIR's folder, a folder of texts (.txt, "
            ".md, .html, .pdf), or hf://OWNER/NAME/FILE.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The index; an existing one is replaced.")],
    kind: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        typer.Option(help="Words (bm25), vectors (dense), or both. [default: bm25]"),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="MODEL", help="dense, hybrid: a sentence encoder's folder or hub id.")
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(help="Text before each query. [default: the encoder's own]")
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(help="Text before each passage. [default: the encoder's own]")
    ] = None,
    pooling: Annotated[
        Literal["mean", "cls", "max", "lasttoken"] | None,
        typer.Option(help="How token vectors are pooled. [default: the encoder's own]"),
    ] = None,
    vectors: Annotated[
        Literal["flat", "ivf-sq8", "ivf-pq"] | None,
        typer.Option(
            help="dense, hybrid: exact with 4 bytes per number, or approximate with 1 or a quarter. "
            f"[default: ivf-sq8; flat below {FEW_PASSAGES:,} passages]"
        ),
    ] = None,
    faiss: Annotated[
        Path | None, typer.Option(metavar="FILE", help="dense: use this faiss index of CORPUS instead of encoding it.")
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add the passages of CORPUS to the index in DIR.")] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove passages: CORPUS has their ids, one a line (.txt) or as its rows' ids."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    r"""Build a search index of a corpus.

    Rows are {"id": "17", "contents": "\"Title\"\ntext"}, or {"_id": "17", "title": "Title", "text": "text"} as BEIR has
    them. The corpus is streamed, whatever its size. After a kill, the same command continues. A corpus on the hub is
    downloaded into DIR.corpus first, and texts are split into passages there. With --add or --remove the index in DIR
    changes instead, and encodes no passage that it keeps; a kill leaves it as it was.
    """
    from sleuth.terminal.progress import progress_bar

    encoding = {"--encoder": encoder, "--query-prefix": query_prefix, "--passage-prefix": passage_prefix}
    encoding |= {"--pooling": pooling, "--vectors": vectors, "--faiss": faiss}
    if add or remove:
        require_unset(
            {"--remove": remove or None} if add else {}, "and --add are two commands; run one after the other"
        )
        require_unset({"--kind": kind} | encoding, f"is for a new index, and --add and --remove keep what {folder} has")
        _print_card(folder, (_add if add else _remove)(corpus, folder), as_json)
        return
    kind = kind or "bm25"
    if kind == "bm25":
        require_unset(encoding, "is for vectors, and a bm25 index has none; add --kind dense")
    elif kind == "hybrid":
        require_unset({"--faiss": faiss}, "is for --kind dense; leave it out to encode the corpus for a hybrid index")
    elif faiss is not None:
        require_unset({"--vectors": vectors}, "is for encoding a corpus, and --faiss opens vectors that exist")
    if kind != "bm25" and encoder is None:
        raise SleuthError(f"--kind {kind}: name the encoder too: --encoder MODEL, a folder or a hub id")

    from sleuth.retrieval.corpus import corpus_file

    corpus = corpus_file(corpus)
    if kind != "bm25":  # before the encoder is loaded
        from sleuth.terminal.recipe_inputs import require_file

        for file in (*([] if corpus.is_dir() else [corpus]), *([faiss] if faiss else [])):
            require_file(file)
    corpus = _local_corpus(corpus, folder)

    def build(progress: Progress, total: int) -> IndexCard:
        if kind == "bm25":
            from sleuth.retrieval.bm25 import build_index

            return build_index(corpus, folder, progress)
        from sleuth.retrieval.dense import adopt_vectors, build_dense
        from sleuth.retrieval.encoder import encoder_card
        from sleuth.retrieval.hybrid import build_hybrid

        card = encoder_card(str(encoder), query_prefix=query_prefix, passage_prefix=passage_prefix, pooling=pooling)
        if faiss is not None:
            return adopt_vectors(corpus, folder, card, faiss, progress)
        storage = vectors or ("flat" if total < FEW_PASSAGES else "ivf-sq8")
        return (build_dense if kind == "dense" else build_hybrid)(corpus, folder, card, storage, progress)

    with progress_bar("index") as progress:
        total = _count_rows(corpus)
        card = build(lambda done: progress(done, max(done, total)), total)
    _print_card(folder, card, as_json)


def _add(corpus: Path, folder: Path) -> IndexCard:
    from sleuth.retrieval.corpus import corpus_file
    from sleuth.retrieval.index_card import read_card
    from sleuth.retrieval.updating import add_passages
    from sleuth.terminal.progress import progress_bar

    count = read_card(folder).count
    corpus = _local_corpus(corpus_file(corpus), folder.with_name(f"{folder.name}.added"))
    with progress_bar("index") as progress:
        total = count + _count_rows(corpus)
        return add_passages(folder, corpus, lambda done: progress(done, max(done, total)))


def _remove(ids: Path, folder: Path) -> IndexCard:
    from sleuth.retrieval.corpus import read_ids
    from sleuth.retrieval.index_card import read_card
    from sleuth.retrieval.updating import remove_passages
    from sleuth.terminal.progress import progress_bar

    total, removed = read_card(folder).count, read_ids(ids)
    with progress_bar("index") as progress:
        return remove_passages(folder, removed, lambda done: progress(done, max(done, total - len(removed))))


def _print_card(folder: Path, card: IndexCard, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **card.as_json()}))
        return
    typer.echo(f"{folder}: {card.count:,} passages, {card.kind}")
    if card.encoder is not None:
        shown = f"queries begin with {card.encoder.query_prefix!r}, passages with {card.encoder.passage_prefix!r}"
        typer.echo(f"encoder {card.encoder.model}: {card.encoder.width} numbers; {shown}")
    if card.flat_recall is not None:
        value, low, high = (card.flat_recall[name] for name in ("value", "low", "high"))
        typer.echo(f"vectors {card.storage}: {value:.3f} ({low:.3f} to {high:.3f}) of the exact 10 nearest are found")
    typer.echo(f'Next: sleuth search {quote(str(folder))} "some words"')


def _local_corpus(corpus: Path, folder: Path) -> Path:
    """The corpus as a file of rows on this machine. One of the hub, and one made of texts, is kept beside the index,
    because a build that continues and an index made from faiss vectors read its passages there."""
    from sleuth.data.hub import HubLocation, download_from_hub
    from sleuth.data.pages import is_of_pages
    from sleuth.data.rows import FORMATS
    from sleuth.retrieval.corpus import BEIR_CORPUS, write_corpus
    from sleuth.terminal.progress import progress_bar

    place, beside = HubLocation.read(corpus), folder.with_name(f"{folder.name}.corpus")
    if place is None and is_of_pages(corpus):
        with progress_bar("texts") as progress:
            write_corpus(corpus, beside / BEIR_CORPUS, progress=lambda done: progress(done, done))
        return beside / BEIR_CORPUS
    if place is None:
        return corpus
    if place.path and not place.path.endswith(FORMATS):
        raise SleuthError(f"{place}: unknown format; the name should end in {', '.join(FORMATS)}")
    return download_from_hub(place, beside, progress_bar)


def _count_rows(corpus: Path) -> int:
    """The lines of a corpus; 0 if it cannot be read. Raises SleuthError if it unpacks into more than is read."""
    from sleuth.data.rows import DAMAGED, count_rows

    try:
        return count_rows(corpus) if corpus.is_file() else 0
    except (OSError, *DAMAGED):  # the build reports what is wrong
        return 0
