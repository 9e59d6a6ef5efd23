"""Example questions that the page offers: those of a file, or of an evaluation in the run that wrote the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sleuth.cite.dialect import refines
from sleuth.dialect import Dialect
from sleuth.types import Task

COUNT = 3
TO_REFINE = """Where was Ada Voss born?
<tool_output>
<snippet id=a1>Ada Voss was born in Tarn in 1890.</snippet>
<snippet id=b2>Tarn is a town by a lake.</snippet>
</tool_output>"""


def example_questions(model: str, dialect: Dialect, tasks: Sequence[Task]) -> list[str]:
    """At most three messages, of different kinds if there are several: of the tasks or, without any, of the run's
    evaluation. A refiner gets only tasks with a tool output or else one of our own, as evaluations do not store what it
    read."""
    if refines(dialect):
        given = [(task.kind, message_of(task)) for task in tasks if task.evidence is not None]
        return _of_each_kind(given) or [TO_REFINE]
    if tasks:
        return _of_each_kind((task.kind, task.question) for task in tasks)
    return _of_each_kind((record["kind"], record["question"]) for record in _evaluated(Path(model)))


def message_of(task: Task) -> str:
    """The message that asks the question of a task; a refiner's has the tool output."""
    if task.evidence is None:
        return task.question
    reasoning = f"\nReasoning: {task.evidence.reasoning}" if task.evidence.reasoning else ""
    return f"Question: {task.question}{reasoning}\n<tool_output>\n{task.evidence.output.strip()}\n</tool_output>"


def _of_each_kind(asked: Iterable[tuple[str, str]]) -> list[str]:
    """The first question of each kind, then further ones."""
    by_kind: dict[str, list[str]] = {}
    for kind, question in asked:
        by_kind.setdefault(kind, []).append(question)
    firsts = [question for of_kind in by_kind.values() for question in of_kind[:1]]
    others = [question for of_kind in by_kind.values() for question in of_kind[1:]]
    return [*firsts, *others][:COUNT]


def _evaluated(checkpoint: Path) -> Iterator[dict[str, Any]]:
    """The records of the first evaluation in the run of a checkpoint, RUN/checkpoints/step-000100, that asked
    questions. Examples are not worth an error, so damaged files are skipped."""
    folder = checkpoint.resolve().parent
    if folder.name != "checkpoints":
        return
    for file in sorted((folder.parent / "eval").glob("*.json")):
        try:
            records = json.loads(file.read_bytes())["records"]
            found = [record for record in records if "golden_answers" in record and _is_asked(record)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if found:
            yield from found
            return


def _is_asked(record: dict[str, Any]) -> bool:
    return all(isinstance(record.get(key), str) for key in ("kind", "question"))
