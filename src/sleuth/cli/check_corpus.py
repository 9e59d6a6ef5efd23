"""`sleuth check corpus`: whether a corpus has what questions ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.figures import print_figures
from sleuth.cli.options import AsJson


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
    from sleuth.cli.progress import row_counter
    from sleuth.metrics.corpus_check import check_corpus as check
    from sleuth.metrics.corpus_check import read_needs
    from sleuth.retrieval.corpus import corpus_file, read_corpus

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
