"""`sleuth check data`, `texts`, `corpus` and `index`: all that is wrong with data, before anything is trained on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.terminal.inputs import read_folder
from sleuth.terminal.options import AsJson
from sleuth.terminal.tables import print_figures, show
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.answers.data_check import DataReport, Findings, TextReport

MOST_COLUMNS = 8
"""Columns that a line names."""

Against = Annotated[
    Path | None, Option(metavar="DATA", help="Count the rows that are in DATA too.", show_default=False)
]


def check_data(
    data: Annotated[
        Path,
        Argument(
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
    from sleuth.runs.progress import row_counter

    is_questions = data.name.endswith(FORMATS) or HubLocation.read(data) is not None
    if not is_questions and not (data.is_dir() and sets_in(data)):
        raise SleuthError(
            f"{data}: not a file of questions ({', '.join(FORMATS)}) and not a folder of test sets; texts are checked "
            f"by `sleuth check texts {quote(str(data))}`"
        )
    found = data_check.check_data(data, against, row_counter(f"check {data}"))
    _report(data, against, found, _question_lines, as_json)
    if not found.rows:
        raise SleuthError(f"{data}: no questions in it")


def check_texts(
    texts: Annotated[
        Path,
        Argument(
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
    from sleuth.runs.progress import row_counter
    from sleuth.terminal.recipe_inputs import require_texts

    require_texts(texts)
    found = data_check.check_text(texts, against, row_counter(f"check {texts}"))
    _report(texts, against, found, _text_lines, as_json)


def _report(data: Path, against: Path | None, report: DataReport | TextReport, lines: Any, as_json: bool) -> None:
    """Prints the report, as JSON or by `lines`. Raises SleuthError where a run would refuse the data."""
    record = {"data": str(data), "against": against and str(against), "ok": not report.refused}
    show(as_json, record | asdict(report), *([] if as_json else lines(data, against, report)))
    if report.refused:
        raise SleuthError(
            f"{data}: of {report.rows:,} rows, malformed: {report.malformed.count:,}, with a repeated id: "
            f"{report.repeated_ids.count:,}; a run refuses the file until these are corrected"
        )


def _question_lines(data: Path, against: Path | None, report: DataReport) -> Iterator[str]:
    yield f"{data}: {report.rows:,} rows, {sum(report.sources.values()):,} questions"
    yield from _source_lines(report.sources)
    yield from _finding_lines("malformed rows", report.malformed)
    yield from _finding_lines("ids that an earlier row has", report.repeated_ids)
    yield from _finding_lines("questions that an earlier row asks", report.repeated_questions)
    yield from _finding_lines("golden answers that are empty once normalised", report.empty_answers)
    if report.unanswered.count:
        yield from _finding_lines("no golden answers, which only rewards of your own accept", report.unanswered)
    if report.info:
        columns = ", ".join(f"{name[:100]} ({count:,})" for name, count in [*report.info.items()][:MOST_COLUMNS])
        more = f" and {len(report.info) - MOST_COLUMNS:,} more" if len(report.info) > MOST_COLUMNS else ""
        yield f"columns that only code of your own reads, as task.info: {columns}{more}"
    if report.tool_outputs:
        yield f"tool outputs to refine: {report.tool_outputs:,}"
        yield from _finding_lines("answers that cite what their tool output does not have", report.unknown_citations)
    if report.overlap is not None:
        yield from _finding_lines(f"questions that {against} asks too", report.overlap)


def _text_lines(texts: Path, against: Path | None, report: TextReport) -> Iterator[str]:
    yield f"{texts}: {report.rows:,} documents, {report.characters:,} characters"
    yield from _source_lines(report.sources)
    yield "by part: " + ", ".join(f"{part} {count:,}" for part, count in report.parts.items())
    if report.cut:
        yield f"with a place where their ending begins: {report.cut:,}"
    if report.thoughts:
        yield f"thoughts: {report.thoughts:,}"
    yield from _finding_lines("malformed rows", report.malformed)
    yield from _finding_lines("ids that an earlier row has", report.repeated_ids)
    yield from _finding_lines("texts that an earlier row has, which a run skips", report.repeated_texts)
    if report.thoughts or report.altered.count:
        yield from _finding_lines(
            "texts whose copy with thoughts differs from them, so that a run skips it", report.altered
        )
    if report.overlap is not None:
        yield from _finding_lines(f"texts that {against} has too", report.overlap)


def _source_lines(sources: Mapping[str, int]) -> Iterator[str]:
    """The number of rows of each source, where any row names one."""
    if sources.keys() != {""}:
        yield from (f"  {count:>9,}  {source or '(no source)'}" for source, count in sources.items())


def _finding_lines(title: str, findings: Findings) -> Iterator[str]:
    """How often a problem occurs, and its first cases."""
    yield f"{title}: {findings.count:,}"
    yield from (f"  {line}" for line in findings.first)
    if findings.count > len(findings.first):
        yield f"  and {findings.count - len(findings.first):,} more"


def check_corpus(
    corpus: Annotated[
        Path,
        Argument(
            metavar="CORPUS",
            help="Passages (.jsonl, .jsonl.gz, .parquet, .csv, .tsv, .json), BEIR's folder, or a folder of documents.",
            show_default=False,
        ),
    ],
    against: Annotated[Path, Option(metavar="QUESTIONS", help="Questions, or hf://...", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check what share of questions a corpus can answer at all.

    Counts questions with a golden answer in any passage, with all their supporting titles, and with all their gold
    passages: bounds of what any retriever finds. Yes-or-no questions are left out of the first.
    """
    from sleuth.retrieval.corpus import corpus_file, read_corpus
    from sleuth.runs.progress import row_counter
    from sleuth.search.corpus_check import check_corpus as check
    from sleuth.search.corpus_check import read_needs

    needs = read_needs(against)
    with TemporaryDirectory() as folder:
        if (file := corpus_file(corpus)).is_dir():
            read_folder(file, Path(folder), indexed=False)
            file = corpus_file(Path(folder))
        found = check(read_corpus(file), needs, row_counter(f"check {corpus}"))
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
    folder: Annotated[Path, Argument(metavar="DIR", help="An index.", show_default=False)], as_json: AsJson = False
) -> None:
    """Check that an index opens, and each byte is as it was built.

    Opening an index compares the sizes of all its files and the checksums of the first 128 MiB; this reads all.
    """
    from sleuth.retrieval.index_card import damaged_index, index_damage, read_card
    from sleuth.retrieval.open_index import open_index

    card = read_card(folder)
    if (problem := index_damage(folder, card, whole=True)) is not None:
        raise damaged_index(folder, problem)
    open_index(folder)
    sizes = card.files or {}
    record = {"folder": str(folder), "kind": card.kind, "count": card.count, "files": len(sizes)}
    intact = f"all {len(sizes)} files are as they were built"
    show(
        as_json,
        record | {"bytes": sum(sizes.values()), "intact": bool(sizes) or None},
        f"{folder}: {card.count:,} passages, {card.kind}; "
        + (intact if sizes else "it opens, but has no checksums: build it again"),
    )
