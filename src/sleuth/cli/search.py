"""`sleuth search`: searches an index by hand, or measures its recall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.terminal.figures import print_figures
from sleuth.terminal.inputs import prepare_out_file, require_unset
from sleuth.terminal.options import AsJson
from sleuth.types import Passage, Retriever, SleuthError, Task

if TYPE_CHECKING:
    from sleuth.evaluation.intervals import Measured
    from sleuth.retrieval.open_index import Index


def search(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.")],
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="The query, in quotes.")] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many passages.")] = 3,
    questions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measure recall with these questions instead; BEIR's folder or qrels too."),
    ] = None,
    trec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --questions: write what was found as a TREC run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search an index, or measure its recall.

    With --questions FILE: how often a gold passage is among the first N results for the question. With --trec FILE
    also all results, one line each, for trec_eval and its relatives.
    """
    if (query is None) == (questions is None):
        raise SleuthError(
            f'give a query or --questions, one of the two: sleuth search {quote(str(folder))} "some words"'
        )
    if questions is None:
        require_unset({"--trec": trec}, "writes what is found for the questions of a file; add --questions FILE")
    else:
        from sleuth.terminal.recipe_inputs import require_file

        if not questions.is_dir():
            require_file(questions)
        prepare_out_file(trec, option="--trec", example="run.txt")

    from sleuth.retrieval.open_index import open_index

    index = open_index(folder)
    if query is not None:
        [passages] = asyncio.run(index.search([query], k))
        _print_passages(query, passages, as_json)
    elif questions is not None:
        _search_questions(index, questions, k, trec, as_json)


def _print_passages(query: str, passages: Sequence[Passage], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"query": query, "passages": [asdict(passage) for passage in passages]}))
        return
    if not passages:
        typer.echo("nothing found")
    for rank, passage in enumerate(passages, start=1):
        typer.echo(f"[{rank}] {passage.title}  (id {passage.id}, score {passage.score:.2f})\n    {passage.text}")


def _search_questions(index: Index, questions: Path, k: int, trec: Path | None, as_json: bool) -> None:
    from sleuth.data.questions import load_questions
    from sleuth.search.rows import is_beir, load_beir
    from sleuth.terminal.progress import progress_bar

    tasks = load_beir(questions) if is_beir(questions) else load_questions(questions)
    with_gold = [task for task in tasks if task.gold_passages]
    if trec is None:
        tasks = with_gold
        if not tasks:
            raise SleuthError(f"{questions}: no question names its `gold_ids`, so recall cannot be measured")
    with progress_bar("search") as progress:
        cached = _CachedRetriever(index, lambda answered: progress(answered, len(tasks)))
        found = asyncio.run(cached.search([task.question for task in tasks], k))
        recall = _recall_by_kind(cached, with_gold, k) if with_gold else {}
    if trec is not None:
        _write_run(trec, tasks, found, f"sleuth-{index.card.kind}")
    _print_recall(recall, k, trec, as_json)


def _write_run(file: Path, tasks: Sequence[Task], found: Sequence[Sequence[Passage]], tag: str) -> None:
    from sleuth.host.atomic import replacing_file
    from sleuth.search.rows import run_lines

    with replacing_file(file) as partial, partial.open("w", encoding="utf-8") as lines:
        lines.writelines(f"{line}\n" for line in run_lines(tasks, found, tag))


def _recall_by_kind(index: Retriever, tasks: Sequence[Task], k: int) -> dict[str, Measured]:
    """Recall of all questions, then of each kind if there are several."""
    from sleuth.search.figures import recall_at_k

    groups = {"all": tasks}
    kinds = sorted({task.kind for task in tasks})
    if len(kinds) > 1:
        groups |= {kind or "other": [task for task in tasks if task.kind == kind] for kind in kinds}
    return {name: asyncio.run(recall_at_k(index, group, k)) for name, group in groups.items()}


class _CachedRetriever:
    """A retriever that reports progress and searches for each query once."""

    def __init__(self, index: Retriever, progress: Callable[[int], None]) -> None:
        self.index = index
        self.progress = progress
        self.known: dict[tuple[str, int], list[Passage]] = {}

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        for number, query in enumerate(queries, start=1):
            if (query, k) not in self.known:
                [self.known[query, k]] = await self.index.search([query], k)
                self.progress(number)
                await asyncio.sleep(0)  # an index that answers inline would never let Ctrl-C through
        return [self.known[query, k] for query in queries]


def _print_recall(recall: Mapping[str, Measured], k: int, trec: Path | None, as_json: bool) -> None:
    if as_json:
        figures = {"k": k, "recall": {name: measured.as_json() for name, measured in recall.items()}}
        typer.echo(json.dumps(figures | ({} if trec is None else {"trec": str(trec)})))
        return
    if recall:
        print_figures(f"recall@{k}", recall)
    if trec is not None:
        typer.echo(f"{trec}: what was found, as a TREC run")
