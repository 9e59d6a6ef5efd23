"""Questions with golden answers, as Search-R1 and FlashRAG lay them out, into tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.rows import Row, checked_text, read_rows, text_of
from sleuth.recipe.data import QuestionsRecipe
from sleuth.types import SleuthError, Task


def load_questions(path: Path) -> list[Task]:
    """The tasks of a .jsonl, .jsonl.gz or .parquet file, in its order.

    Rows hold `id`, `question` and `golden_answers`, and may hold `gold_ids` (corpus ids), `type` and `data_source`:
    `{"id": "q7", "question": "where was Ada Voss born?", "golden_answers": ["Tarn"], "gold_ids": ["17"]}`.
    Raises SleuthError with file:line for a row that lacks one, for an id seen before, and for a file without rows.
    """
    tasks: dict[str, Task] = {}
    for where, row in read_rows(path):
        task = task_from_row(row, where)
        if task.id in tasks:
            raise SleuthError(f"{where}: id {task.id!r} was used by an earlier question; ids should be unique")
        tasks[task.id] = task
    if not tasks:
        raise SleuthError(f"{path}: no questions in this file")
    return list(tasks.values())


def task_from_row(row: Row, where: str) -> Task:
    """One row as a task; `where` is what messages point at. Lists may be numpy arrays, as data frames hold them."""
    return Task(
        id=text_of(row, "id", where),
        question=text_of(row, "question", where).strip(),
        golden_answers=_answers(row, where),
        gold_passages=_texts(row.get("gold_ids"), "gold_ids", where),
        kind=_label(row, "type", where),
        source=_label(row, "data_source", where),
    )


def questions_hash(tasks: Iterable[Task]) -> str:
    """sha256 of everything the tasks hold, in order: two evaluations with equal hashes asked the same questions."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(astuple(task), ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def _answers(row: Row, where: str) -> tuple[str, ...]:
    answers = _texts(row.get("golden_answers"), "golden_answers", where)
    if not answers:
        raise SleuthError(f'{where}: no `golden_answers`; expected a list of strings such as ["Tarn"]')
    return answers


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    """A list of strings, a bare string (a list of one) or nothing, as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence | np.ndarray):
        raise SleuthError(f"{where}: `{key}` should be a list of strings, found {type(value).__name__}")
    return tuple(checked_text(entry, key, where) for entry in value)


def _label(row: Row, key: str, where: str) -> str:
    return checked_text(row[key], key, where) if row.get(key) else ""


def select_tasks(data: QuestionsRecipe) -> list[Task]:
    """The questions that a recipe's `[stage.data]` names."""
    tasks = [task for task in load_questions(data.questions) if not data.kinds or task.kind in data.kinds]
    if not tasks:
        raise SleuthError(f"{data.questions}: holds no question of the kinds {', '.join(data.kinds)}")
    return tasks[: data.limit]
