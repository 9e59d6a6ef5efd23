"""`sleuth search`: searches an index by hand, or measures its recall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.figures import print_figures
from sleuth.cli.options import AsJson
from sleuth.types import Passage, Retriever, SleuthError

if TYPE_CHECKING:
    from sleuth.metrics.intervals import Measured


def search(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An index.")],
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="The query, in quotes.")] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many passages.")] = 3,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure recall with these questions instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search an index, or measure its recall.

    With --questions FILE: how often a gold passage is among the first N results for the question.
    """
    if (query is None) == (questions is None):
        raise SleuthError(f'give a query or --questions, one of the two: sleuth search {folder} "some words"')
    if questions is not None:
        from sleuth.plan.inputs import require_file

        require_file(questions)

    from sleuth.retrieval.open_index import open_index

    index = open_index(folder)
    if query is not None:
        [passages] = asyncio.run(index.search([query], k))
        _print_passages(query, passages, as_json)
    elif questions is not None:
        _print_recall(_recall_by_kind(index, questions, k), k, as_json)


def _print_passages(query: str, passages: Sequence[Passage], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"query": query, "passages": [asdict(passage) for passage in passages]}))
        return
    if not passages:
        typer.echo("nothing found")
    for rank, passage in enumerate(passages, start=1):
        typer.echo(f"[{rank}] {passage.title}  (id {passage.id}, score {passage.score:.2f})\n    {passage.text}")


def _recall_by_kind(index: Retriever, questions: Path, k: int) -> dict[str, Measured]:
    """Recall of all questions, then of each kind if there are several."""
    from sleuth.cli.progress import progress_bar
    from sleuth.data.questions import load_questions
    from sleuth.metrics.metrics import recall_at_k

    tasks = [task for task in load_questions(questions) if task.gold_passages]
    if not tasks:
        raise SleuthError(f"{questions}: no question names its `gold_ids`, so recall cannot be measured")
    groups = {"all": tasks}
    kinds = sorted({task.kind for task in tasks})
    if len(kinds) > 1:
        groups |= {kind or "other": [task for task in tasks if task.kind == kind] for kind in kinds}
    with progress_bar("search") as progress:
        cached = _CachedRetriever(index, lambda answered: progress(answered, len(tasks)))
        return {name: asyncio.run(recall_at_k(cached, group, k)) for name, group in groups.items()}


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


def _print_recall(recall: Mapping[str, Measured], k: int, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"k": k, "recall": {name: measured.as_json() for name, measured in recall.items()}}))
    else:
        print_figures(f"recall@{k}", recall)
