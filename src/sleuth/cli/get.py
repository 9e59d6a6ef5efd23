"""`sleuth get`: a corpus or a test set by name, from the hub, ready to train with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from sleuth.terminal.inputs import require_unset
from sleuth.terminal.options import AsJson
from sleuth.terminal.tables import show

if TYPE_CHECKING:
    from sleuth.data.catalogue import Entry
    from sleuth.evaluation.intervals import Measured
    from sleuth.types import Task

ASKED = 1000
"""Questions with which a new index is tried."""
K = 3


def get(
    name: Annotated[str | None, Argument(metavar="NAME", help="A corpus or test set; without one, lists them.")] = None,
    folder: Annotated[
        Path | None,
        Argument(
            metavar="DIR",
            help="Where it goes, an index to DIR/index. [default: data/NAME, and an index where recipes look for it]",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[Literal["bm25", "dense"], Option(help="Index of words, or of the published vectors.")] = "bm25",
    as_json: AsJson = False,
) -> None:
    """Download a corpus with its index, or a test set, by name.

    Says what it needs first; the same command goes on with what a broken download left. A corpus ends with an
    index, its recall on 1,000 questions, and the lines for a recipe. Of files that are here `sleuth index` makes one,
    also of the published vectors (--faiss).
    """
    from sleuth.data.catalogue import find_entry

    if name is None:
        return _list(as_json)
    entry = find_entry(name)
    place = folder / "index" if folder else entry.index(kind)
    folder = folder or Path("data") / name
    if not entry.is_corpus:
        require_unset({"--kind": kind if kind != "bm25" else None}, f"is for a corpus, and {name} is questions")
        return _get_questions(entry, folder, as_json)
    record = _get_corpus(entry, folder, place, kind)
    show(as_json, record, *_lines(record))


def _list(as_json: bool) -> None:
    from sleuth.data.catalogue import ENTRIES

    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in ENTRIES]))
        return
    width = max(len(entry.name) for entry in ENTRIES)
    for entry in ENTRIES:
        count = f"; {entry.passages:,} passages" if entry.passages else ""
        typer.echo(f"{entry.name:<{width}}  {entry.about}{count}")
        typer.echo(f"{'':<{width}}  {entry.file}; licence: {entry.licence or 'see the card of its source'}")
    typer.echo("Sizes and checksums are those that the hub states, and compared with what arrives.")


def _get_questions(entry: Entry, folder: Path, as_json: bool) -> None:
    file, tasks = _questions_of(entry, folder)
    what = "problems" if entry.layout else "questions"
    record = {"name": entry.name, what: str(file), "count": len(tasks)}
    line = f'{what} = "{file}"'
    line = f'sets = [{{ layout = "{entry.layout}", {line} }}]' if entry.layout else line
    show(as_json, record, f"{file}: {len(tasks):,} {what}", f"In a recipe: {line}")


def _questions_of(entry: Entry, folder: Path) -> tuple[Path, Sequence[Any]]:
    """The file of an entry, and its questions or problems."""
    from sleuth.data.catalogue import location_of
    from sleuth.data.hub import download_from_hub
    from sleuth.data.questions import load_questions
    from sleuth.runs.progress import progress_bar
    from sleuth.think.problems import load_problems

    file = download_from_hub(location_of(entry.file), folder, progress_bar)
    return file, load_problems(entry.layout, file) if entry.layout else load_questions(file)


def _get_corpus(entry: Entry, folder: Path, place: Path, kind: Literal["bm25", "dense"]) -> dict[str, Any]:
    from sleuth.data.catalogue import fetch_vectors, find_entry, needs_of
    from sleuth.data.hub import download
    from sleuth.retrieval.bm25 import build_index
    from sleuth.retrieval.open_index import open_index
    from sleuth.retrieval.vectors import load_faiss
    from sleuth.runs.progress import progress_bar

    dense = kind == "dense"
    if dense:
        load_faiss()  # before hours of downloading
    needed = needs_of(entry, folder, dense=dense)
    typer.echo(f"{entry.name}: {needed.line(folder)}", err=True)
    corpus = download(needed.corpus, folder, progress_bar)
    vectors = fetch_vectors(needed.vectors, folder, progress_bar) if dense else None
    tasks = _questions_of(find_entry(entry.questions), folder)[1]
    with progress_bar("index") as progress:
        if vectors is not None:
            from sleuth.retrieval.dense import adopt_vectors
            from sleuth.retrieval.encoder import encoder_card

            card = encoder_card(entry.encoder)
            made = adopt_vectors(corpus, place, card, vectors, lambda n: progress(n, entry.passages))
        else:
            made = build_index(corpus, place, lambda n: progress(n, entry.passages))
    recall = _recall(open_index(place), tasks).as_json()
    shown = {"name": entry.name, "index": str(place), "kind": kind, "count": made.count}
    return shown | {"recall": recall, "found_by": "golden answer", "k": K}


def _recall(index: Any, tasks: Sequence[Task]) -> Measured:
    """The share of at most `ASKED` drawn questions for which a passage among the first `K` has a golden answer."""
    from sleuth.answers.match import appears_in
    from sleuth.evaluation.intervals import share
    from sleuth.runs.progress import progress_bar

    drawn = random.Random(0).sample(list(tasks), min(ASKED, len(tasks)))
    hits: list[float] = []
    with progress_bar("recall") as progress:
        for start in range(0, len(drawn), index.batch):
            part = drawn[start : start + index.batch]
            for task, passages in zip(part, index.find([task.question for task in part], K), strict=True):
                texts = [f"{passage.title} {passage.text}" for passage in passages]
                hits.append(float(any(appears_in(answer, text) for text in texts for answer in task.golden_answers)))
                progress(len(hits), len(drawn))
    return share(hits)


def _lines(shown: dict[str, Any]) -> list[str]:
    recall = shown["recall"]
    figure = f"{recall['value']:.3f} ({recall['low']:.3f} to {recall['high']:.3f}) of {recall['n']:,} questions"
    lines = [
        f"{shown['index']}: {shown['count']:,} passages, {shown['kind']}",
        f"a {shown['found_by']} is among the first {shown['k']} for {figure}",
    ]
    return [*lines, "In a recipe:", "  [stage.env]", f'  index = "{shown["index"]}"']
