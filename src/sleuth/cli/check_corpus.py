"""`sleuth check corpus` and `sleuth check index`: what a corpus has for questions, and whether an index is intact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.terminal.figures import print_figures
from sleuth.terminal.options import AsJson


def check_corpus(
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="Passages (.jsonl, .jsonl.gz, .parquet, .csv, .tsv, .json), or BEIR's folder.",
            show_default=False,
        ),
    ],
    against: Annotated[
        Path,
        typer.Option(metavar="QUESTIONS", help="Questions, BEIR's folder or qrels, or hf://...", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Check what share of questions a corpus can answer at all.

    Counts questions with a golden answer in any passage, with all their supporting titles, and with all their gold
    passages: bounds of what any retriever finds. Yes-or-no questions are left out of the first.
    """
    from sleuth.retrieval.corpus import corpus_file, read_corpus
    from sleuth.search.corpus_check import check_corpus as check
    from sleuth.search.corpus_check import read_needs
    from sleuth.terminal.progress import row_counter

    needs = read_needs(against)
    found = check(read_corpus(corpus_file(corpus)), needs, row_counter(f"check {corpus}"))
    if as_json:
        typer.echo(json.dumps({"corpus": str(corpus), "against": str(against), **found.as_json()}))
        return
    typer.echo(f"{corpus}: {found.passages:,} passages, {found.questions:,} questions of {against}")
    shares = {"an answer": found.answers, "all supporting titles": found.titles, "all gold passages": found.gold}
    print_figures("questions with", {name: figure for name, figure in shares.items() if figure.n})
    if found.unsearchable:
        typer.echo(f"answered by yes or no, or without answers, and left out of the first: {found.unsearchable:,}")
    if found.missing:
        typer.echo("no answer in the corpus, for instance:")
    for question in found.missing:
        typer.echo(f"  {question}")


def check_index(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check that every byte of an index is as it was built, and that it opens.

    Opening an index compares the sizes of all its files and the checksums of the first 128 MiB; this reads all.
    """
    from sleuth.retrieval.index_card import damaged_index, index_damage, read_card
    from sleuth.retrieval.open_index import open_index

    card = read_card(folder)
    if (problem := index_damage(folder, card, whole=True)) is not None:
        raise damaged_index(folder, problem)
    open_index(folder)
    sizes = card.files or {}
    if as_json:
        found = {"folder": str(folder), "kind": card.kind, "count": card.count}
        typer.echo(
            json.dumps(found | {"files": len(sizes), "bytes": sum(sizes.values()), "intact": bool(sizes) or None})
        )
    elif sizes:
        typer.echo(f"{folder}: {card.count:,} passages, {card.kind}; all {len(sizes)} files are as they were built")
    else:
        typer.echo(f"{folder}: {card.count:,} passages, {card.kind}; it opens, but has no checksums: build it again")
