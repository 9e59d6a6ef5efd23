"""What people have as a corpus, as a file of passages: tables of rows, and folders of texts and pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sleuth.data.columns import require_passage
from sleuth.data.pages import Page, pages_and_rows, split_text
from sleuth.data.questions import MAX_PROBLEMS, first_problems
from sleuth.retrieval.corpus import SeenIds, contents_of, passage_of
from sleuth.types import Passage, SleuthError


def write_corpus(
    path: Path, out: Path, names: Mapping[str, str] | None = None, progress: Callable[[int], None] = lambda done: None
) -> int:
    """Writes the passages of a file or a folder to `out`, a .jsonl file in our layout, and returns their number.
    `names` adds names of columns: `{"text": "body"}`. Raises SleuthError for the first few faults, with the number of
    all."""
    problems: list[str] = []
    ids, count, found = SeenIds(), 0, 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as lines:
        for where, passage in _passages(path, names or {}):
            found += 1
            if isinstance(passage, Passage) and not ids.add(passage.id):
                passage = SleuthError(
                    f"{where}: id {passage.id!r} was used by an earlier passage; ids should be unique"
                )
            if isinstance(passage, SleuthError):
                problems += passage.args
                if len(problems) >= MAX_PROBLEMS:
                    break
                continue
            lines.write(json.dumps({"id": passage.id, "contents": contents_of(passage)}, ensure_ascii=False) + "\n")
            count += 1
            progress(count)
    if problems or not count:
        out.unlink()
    if problems:
        raise SleuthError(*first_problems(problems, found, path))
    if not count:
        raise SleuthError(f"{path}: no passages in it")
    return count


def _passages(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Passage | SleuthError]]:
    """(place, passage or error) of all of a file or a folder. A page is split, a row is one passage."""
    is_first = True
    for where, name, found in pages_and_rows(path, names):
        if isinstance(found, SleuthError):
            yield where, found
        elif isinstance(found, Page):
            for number, text in enumerate(split_text(found.text), start=1):
                yield where, Passage(id=f"{name}#{number}", title=found.title, text=text)
        else:
            if is_first:
                require_passage(found, where)
            is_first = False
            try:
                passage = passage_of(found, where)
            except SleuthError as error:
                yield where, error
                continue
            yield where, replace(passage, id=name + passage.id)
