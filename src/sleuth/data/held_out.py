"""Splits what a user has into a part to train on and a part to test with, and writes both as rows of our layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sleuth.data.layouts import question_layouts
from sleuth.data.questions import normalised_question
from sleuth.types import SleuthError, Task

TEST_SHARE, MOST_TEST_ROWS = 0.1, 500
"""Rows to test with: a tenth, and at most so many, whose exact match has an interval of four points at most."""
One = TypeVar("One")


def split(rows: Sequence[One], key: Callable[[One], Hashable], seed: int, what: str) -> tuple[list[One], list[One]]:
    """(train, test), each in the order of `rows`; rows with the same `key` are in the same part, which depends on the
    seed and the key alone. Raises SleuthError if all have the same."""
    keys = sorted(
        {key(row) for row in rows}, key=lambda one: hashlib.blake2b(f"{seed} {one}".encode(), digest_size=16).digest()
    )
    if len(keys) < 2:
        raise SleuthError(f"needs at least two different {what}, one to train on and one to test with")
    wanted = min(MOST_TEST_ROWS, max(1, round(TEST_SHARE * len(keys))))
    test = set(keys[:wanted])
    return [row for row in rows if key(row) not in test], [row for row in rows if key(row) in test]


def split_questions(tasks: Sequence[Task], seed: int) -> tuple[list[Task], list[Task]]:
    """(train, test) without a question that is in both, in whatever case and punctuation."""
    return split(tasks, lambda task: normalised_question(task.question), seed, "questions")


def row_of(task: Task) -> dict[str, Any]:
    """A task as a row in our layout, which loads as the same task without its prompt."""
    for layout in question_layouts():
        if (row := layout.row_of(task)) is not None:
            return row
    optional = {"gold_ids": list(task.gold_passages), "type": task.kind, "data_source": task.source}
    row = {"id": task.id, "question": task.question, "golden_answers": list(task.golden_answers)}
    return row | {key: value for key, value in optional.items() if value}


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line."""
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
