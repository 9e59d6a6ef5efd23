"""A check of question data that reports all problems, not only the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sleuth.answers.match import normalise
from sleuth.answers.suites import sets_in
from sleuth.data.hub import local_file
from sleuth.data.layouts import question_layouts
from sleuth.data.questions import columns_of, normalised_question, require_few, require_questions, task_from_row
from sleuth.data.rows import rows_and_faults
from sleuth.types import SleuthError, Task

MAX_EXAMPLES = 5
"""Messages kept of each kind of finding; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The number of findings and the messages of the first few: `Findings(count=9, first=("q.jsonl:3: ...",))`."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The findings in `rows` rows.

    `malformed` rows make no task. `repeated_ids` are rows with the id of an earlier row: a run refuses such a file.
    `repeated_questions` repeat an earlier question up to case, punctuation and spaces. `empty_answers` are golden
    answers that normalise to nothing, which no answer in words can match. `overlap` are questions that the other data
    has too; None without other data. `sources` counts questions by source, `tool_outputs` rows with a tool output to
    refine; `unknown_citations` are those whose own answer cites an id that the tool output lacks.
    """

    rows: int
    malformed: Findings
    repeated_ids: Findings
    repeated_questions: Findings
    empty_answers: Findings
    overlap: Findings | None
    sources: dict[str, int]
    tool_outputs: int
    unknown_citations: Findings

    @property
    def refused(self) -> int:
        """The number of rows for which a run would refuse the data."""
        return self.malformed.count + self.repeated_ids.count


def check_data(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> DataReport:
    """The findings in a file of questions, or in every set of a folder; `progress` gets the number of rows read."""
    tasks: list[tuple[str, Task]] = []
    malformed: list[str] = []
    rows = 0
    for where, task in tasks_and_faults(data):
        rows += 1
        progress(rows)
        if isinstance(task, SleuthError):
            malformed.append(str(task) if len(malformed) < MAX_EXAMPLES else "")
        else:
            tasks.append((where, task))
    return DataReport(
        rows=rows,
        malformed=findings(malformed),
        repeated_ids=_repeated(tasks, lambda task: task.id, "id"),
        repeated_questions=_repeated(tasks, lambda task: normalised_question(task.question), "question"),
        empty_answers=findings(_empty_answers(tasks)),
        overlap=None if against is None else _overlap(tasks, against),
        sources=dict(Counter(task.source for _, task in tasks).most_common()),
        tool_outputs=sum(task.evidence is not None for _, task in tasks),
        unknown_citations=findings(_unknown_citations(tasks)),
    )


def tasks_and_faults(data: Path) -> Iterator[tuple[str, Task | SleuthError]]:
    """(place, task or error) for every row of a file or of the sets of a folder."""
    sets = sets_in(data)
    if data.is_dir() and not sets:
        raise SleuthError(
            f"{data}: holds no test sets; should be a folder with a folder for each, such as nq/test.jsonl"
        )
    for name, file in (sets or {"": ""}).items():
        for at, (where, row) in enumerate(rows_and_faults(local_file(data / file if file else data), columns_of())):
            if at == 0:
                require_questions(row, where)
            require_few(at + 1, where)
            yield where, row if isinstance(row, SleuthError) else _task(row, where, name)


def _task(row: Any, where: str, set_name: str) -> Task | SleuthError:
    """The task as a suite would load it."""
    try:
        task = task_from_row(row, where)
    except SleuthError as error:
        return error
    return replace(task, id=f"{set_name}/{task.id}", source=set_name) if set_name else task


def _repeated(tasks: Sequence[tuple[str, Task]], key: Callable[[Task], str], what: str) -> Findings:
    first: dict[str, str] = {}
    repeated: list[str] = []
    for where, task in tasks:
        if key(task) in first:
            repeated.append(f"{where}: {what} {getattr(task, what)!r} repeats that of {first[key(task)]}")
        else:
            first[key(task)] = where
    return findings(repeated)


def _empty_answers(tasks: Iterable[tuple[str, Task]]) -> Iterator[str]:
    for where, task in tasks:
        for answer in task.golden_answers:
            if not normalise(answer):
                yield f"{where}: golden answer {answer!r} is empty after normalisation"


def _unknown_citations(tasks: Iterable[tuple[str, Task]]) -> Iterator[str]:
    for where, task in tasks:
        if unknown := [id_ for layout in question_layouts() for id_ in layout.doubtful_citations(task)]:
            yield f"{where}: the answer cites {', '.join(unknown)}"


def _overlap(tasks: Sequence[tuple[str, Task]], against: Path) -> Findings:
    places = {
        normalised_question(task.question): where for where, task in tasks_and_faults(against) if isinstance(task, Task)
    }
    return findings(
        f"{where}: {task.question!r} is also at {places[normalised_question(task.question)]}"
        for where, task in tasks
        if normalised_question(task.question) in places
    )


def findings(messages: Iterable[str]) -> Findings:
    """The number of messages, and the first few of them."""
    lines = list(messages)
    return Findings(count=len(lines), first=tuple(lines[:MAX_EXAMPLES]))
