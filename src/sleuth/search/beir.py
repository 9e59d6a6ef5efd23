"""Queries and judgements of a retrieval benchmark in BEIR's layout (arXiv:2104.08663), as tasks.

A folder has `corpus.jsonl` (read by `sleuth.retrieval.corpus`), `queries.jsonl` with rows
`{"_id": "q7", "text": "where was Ada Voss born?"}` and, for each split, a table such as `qrels/test.tsv` with the
columns query-id, corpus-id and score, separated by tabs. It has no answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sleuth.data.rows import read_rows, text_of
from sleuth.host.variables import ROW
from sleuth.types import SleuthError, Task

QUERIES, JUDGEMENTS = "queries.jsonl", Path("qrels", "test.tsv")


def is_beir(path: Path) -> bool:
    """Whether these questions are those of a benchmark: a folder, or one of its tables of judgements."""
    return path.suffix == ".tsv" or path.is_dir()


def load_beir(path: Path) -> list[Task]:
    """The judged queries of a folder's test split, or of the table of judgements at `path`, in its order; the passages
    with a positive score are gold. Raises SleuthError with file:line for a malformed row."""
    table, folder = (path, path.parent.parent) if path.suffix == ".tsv" else (path / JUDGEMENTS, path)
    queries = _queries(folder / QUERIES)
    gold: dict[str, list[str]] = {}
    for where, query, passage, score in _judgements(table):
        if query not in queries:
            raise SleuthError(f"{where}: there is no query {query!r} in {folder / QUERIES}")
        gold.setdefault(query, []).extend([passage] if score > 0 else [])
    if not gold:
        raise SleuthError(f"{table}: no judgements in this file")
    return [
        Task(id=query, question=queries[query], golden_answers=(), gold_passages=tuple(dict.fromkeys(passages)))
        for query, passages in gold.items()
    ]


def _queries(file: Path) -> dict[str, str]:
    queries: dict[str, str] = {}
    for where, row in read_rows(file):
        name = text_of(row, "_id", where)
        if name in queries:
            raise SleuthError(f"{where}: id {name!r} was used by an earlier query; ids should be unique")
        queries[name] = text_of(row, "text", where).strip()
    return queries


def _judgements(table: Path) -> Iterator[tuple[str, str, str, int]]:
    """(where, query, passage, score) of each row after the heading."""
    for where, line in _lines(table):
        columns = line.split("\t")
        if len(columns) != 3 or not all(column.strip() for column in columns):
            raise SleuthError(f"{where}: expected query-id, corpus-id and score, separated by tabs")
        query, passage, score = columns
        if query == "query-id":
            continue
        try:
            yield where, query, passage, int(score)
        except ValueError:
            raise SleuthError(f"{where}: score {score[:40]!r}: expected a whole number, such as 1") from None


def _lines(table: Path) -> Iterator[tuple[str, str]]:
    """(where, line) of the lines that are not blank."""
    if not table.is_file():
        raise SleuthError(f"{table}: no such file")
    most = ROW.bytes
    with table.open("rb") as lines:
        for number, line in enumerate(iter(partial(lines.readline, most + 1), b""), start=1):
            where = f"{table}:{number}"
            if len(line) > most:
                raise SleuthError(f"{where}: the line is {ROW.exceeded()}")
            try:
                text = line.decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError:
                raise SleuthError(f"{where}: not UTF-8 text") from None
            if text.strip():
                yield where, text
