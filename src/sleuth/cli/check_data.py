"""`sleuth check data`, `texts`, `corpus` and `index`: all that is wrong with data, before anything is trained on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.terminal.figures import print_figures
from sleuth.terminal.options import AsJson
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.answers.data_check import DataReport, Findings, TextReport

Against = Annotated[
    Path | None, typer.Option(metavar="DATA", help="Count the rows that are in DATA too.", show_default=False)
]


def check_data(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Questions (.jsonl, .jsonl.gz, .parquet, .csv, .tsv, .json), or a folder of test sets; hf://... too.",
            show_default=False,
        ),
    ],
    against: Against = None,
    as_json: AsJson = False,
) -> None:
    """Check questions: malformed rows, repeats, unusable answers.

    Exit status 2 where a run would refuse the data.
    """
    from sleuth.answers import data_check
    from sleuth.answers.suites import sets_in
    from sleuth.data.hub import HubLocation
    from sleuth.data.rows import FORMATS
    from sleuth.terminal.progress import row_counter

    is_questions = data.name.endswith(FORMATS) or HubLocation.read(data) is not None
    if not is_questions and not (data.is_dir() and sets_in(data)):
        raise SleuthError(
            f"{data}: not a file of questions ({', '.join(FORMATS)}) and not a folder of test sets; texts are checked "
            f"by `sleuth check texts {quote(str(data))}`"
        )
    found = data_check.check_data(data, against, row_counter(f"check {data}"))
    _report(data, against, found, _print_questions, as_json)
    if not found.rows:
        raise SleuthError(f"{data}: no questions in it")


def check_texts(
    texts: Annotated[
        Path,
        typer.Argument(
            metavar="TEXTS",
            help="A file of texts (.txt, .jsonl, .jsonl.gz, .parquet) or a folder of them; hf://... too.",
            show_default=False,
        ),
    ],
    against: Against = None,
    as_json: AsJson = False,
) -> None:
    """Check texts: malformed rows, repeats, overlap with others.

    Exit status 2 where a run would refuse the texts.
    """
    from sleuth.answers import data_check
    from sleuth.terminal.progress import row_counter
    from sleuth.terminal.recipe_inputs import require_texts

    require_texts(texts)
    found = data_check.check_text(texts, against, row_counter(f"check {texts}"))
    _report(texts, against, found, _print_texts, as_json)


def _report(data: Path, against: Path | None, found: DataReport | TextReport, show: Any, as_json: bool) -> None:
    """Prints what was found, by `show` or as JSON. Raises SleuthError where a run would refuse the data."""
    if as_json:
        shown = {"data": str(data), "against": against and str(against), "ok": not found.refused}
        typer.echo(json.dumps(shown | asdict(found)))
    else:
        show(data, against, found)
    if found.refused:
        raise SleuthError(
            f"{data}: of {found.rows:,} rows, malformed: {found.malformed.count:,}, with a repeated id: "
            f"{found.repeated_ids.count:,}; a run refuses the file until these are corrected"
        )


def _print_questions(data: Path, against: Path | None, found: DataReport) -> None:
    typer.echo(f"{data}: {found.rows:,} rows, {sum(found.sources.values()):,} questions")
    _print_sources(found.sources)
    _print_findings("malformed rows", found.malformed)
    _print_findings("ids that an earlier row has", found.repeated_ids)
    _print_findings("questions that an earlier row asks", found.repeated_questions)
    _print_findings("golden answers that are empty once normalised", found.empty_answers)
    if found.tool_outputs:
        typer.echo(f"tool outputs to refine: {found.tool_outputs:,}")
        _print_findings("answers that cite what their tool output does not have", found.unknown_citations)
    if found.overlap is not None:
        _print_findings(f"questions that {against} asks too", found.overlap)


def _print_texts(texts: Path, against: Path | None, found: TextReport) -> None:
    typer.echo(f"{texts}: {found.rows:,} documents, {found.characters:,} characters")
    _print_sources(found.sources)
    typer.echo("by part: " + ", ".join(f"{part} {count:,}" for part, count in found.parts.items()))
    if found.cut:
        typer.echo(f"with a place where their ending begins: {found.cut:,}")
    if found.thoughts:
        typer.echo(f"thoughts: {found.thoughts:,}")
    _print_findings("malformed rows", found.malformed)
    _print_findings("ids that an earlier row has", found.repeated_ids)
    _print_findings("texts that an earlier row has, which a run skips", found.repeated_texts)
    if found.thoughts or found.altered.count:
        _print_findings("texts whose copy with thoughts differs from them, so that a run skips it", found.altered)
    if found.overlap is not None:
        _print_findings(f"texts that {against} has too", found.overlap)


def _print_sources(sources: Mapping[str, int]) -> None:
    """The number of rows of each source, where any row names one."""
    if len(sources) > 1 or "" not in sources:
        for source, count in sources.items():
            typer.echo(f"  {count:>9,}  {source or '(no source)'}")


def _print_findings(title: str, found: Findings) -> None:
    """How often a problem was found, and its first cases."""
    typer.echo(f"{title}: {found.count:,}")
    for line in found.first:
        typer.echo(f"  {line}")
    if found.count > len(found.first):
        typer.echo(f"  and {found.count - len(found.first):,} more")


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
