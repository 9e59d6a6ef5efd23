"""Whether questions can be trained and measured on: all that is wrong with a file of them, not only the first thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sleuth.data.hub import local_file
from sleuth.data.questions import COLUMNS, folded, task_from_row
from sleuth.data.rows import rows_and_faults
from sleuth.data.suites import sets_in
from sleuth.rewards.citation.claims import bracketed, tagged
from sleuth.rewards.match import normalise
from sleuth.types import SleuthError, Task

SHOWN = 5
"""So many of each kind of finding are kept in words; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """How often something was found, and the first few in words: `Findings(count=9, first=("q.jsonl:3: ...",))`."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What a check of `rows` rows found.

    `malformed` rows make no task. `repeated_ids` are of rows whose id an earlier row has: no run takes such a file.
    `repeated_questions` are asked before under another id, in the same words but for case, punctuation and spaces.
    `empty_answers` are golden answers of which normalising leaves nothing, so that no answer in words can match them.
    `overlap` are questions that the other data asks too; None where there is none. `sources` counts questions by
    source. `tool_outputs` counts rows that bring one to refine, and `unknown_citations` are those of them whose own
    answer cites an id that it does not have.
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
        """Rows for which a run would refuse the data."""
        return self.malformed.count + self.repeated_ids.count


def check_data(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> DataReport:
    """Read a file of questions, or every set of a folder of them, to its end; `progress` is told the rows read."""
    tasks: list[tuple[str, Task]] = []
    malformed: list[str] = []
    rows = 0
    for where, found in tasks_and_faults(data):
        rows += 1
        progress(rows)
        if isinstance(found, SleuthError):
            malformed.append(str(found))
        else:
            tasks.append((where, found))
    return DataReport(
        rows=rows,
        malformed=findings(malformed),
        repeated_ids=_repeated(tasks, lambda task: task.id, "id"),
        repeated_questions=_repeated(tasks, lambda task: folded(task.question), "question"),
        empty_answers=findings(_empty_answers(tasks)),
        overlap=None if against is None else _overlap(tasks, against),
        sources=dict(Counter(task.source for _, task in tasks).most_common()),
        tool_outputs=sum(task.evidence is not None for _, task in tasks),
        unknown_citations=findings(_unknown_citations(tasks)),
    )


def tasks_and_faults(data: Path) -> Iterator[tuple[str, Task | SleuthError]]:
    """Every row of a file, or of the sets of a folder, as a task or as what is wrong with it."""
    sets = sets_in(data)
    if data.is_dir() and not sets:
        raise SleuthError(
            f"{data}: holds no test sets; should be a folder with a folder for each, such as nq/test.jsonl"
        )
    for name, file in (sets or {"": ""}).items():
        for where, row in rows_and_faults(local_file(data / file if file else data), COLUMNS):
            yield where, row if isinstance(row, SleuthError) else _task(row, where, name)


def _task(row: Any, where: str, of_set: str) -> Task | SleuthError:
    """The task as a suite would have it."""
    try:
        task = task_from_row(row, where)
    except SleuthError as error:
        return error
    return replace(task, id=f"{of_set}/{task.id}", source=of_set) if of_set else task


def _repeated(tasks: Sequence[tuple[str, Task]], key: Callable[[Task], str], what: str) -> Findings:
    first: dict[str, str] = {}
    again: list[str] = []
    for where, task in tasks:
        if key(task) in first:
            again.append(f"{where}: {what} {getattr(task, what)!r} is that of {first[key(task)]}")
        else:
            first[key(task)] = where
    return findings(again)


def _empty_answers(tasks: Iterable[tuple[str, Task]]) -> Iterator[str]:
    for where, task in tasks:
        for answer in task.golden_answers:
            if not normalise(answer):
                yield f"{where}: golden answer {answer!r} is empty once it is normalised"


def _unknown_citations(tasks: Iterable[tuple[str, Task]]) -> Iterator[str]:
    for where, task in tasks:
        if task.evidence is not None:
            answer = tagged(task.reference)
            cited = (answer if answer.claims else bracketed(task.reference)).ids
            unknown = sorted(cited - {snippet.id for snippet in task.evidence.snippets})
            if unknown:
                yield f"{where}: the answer cites {', '.join(unknown)}"


def _overlap(tasks: Sequence[tuple[str, Task]], against: Path) -> Findings:
    there = {folded(task.question): where for where, task in tasks_and_faults(against) if isinstance(task, Task)}
    return findings(
        f"{where}: {task.question!r} is also at {there[folded(task.question)]}"
        for where, task in tasks
        if folded(task.question) in there
    )


def findings(found: Iterable[str]) -> Findings:
    """Lines that say what was found, the first few of them kept."""
    lines = list(found)
    return Findings(count=len(lines), first=tuple(lines[:SHOWN]))
