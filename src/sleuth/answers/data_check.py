"""Checks of questions and of texts that report all problems, not only the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sleuth.answers.match import normalise
from sleuth.answers.suites import sets_in
from sleuth.data.documents import PARTS, documents_and_faults, part_of, text_digest
from sleuth.data.hub import local_file
from sleuth.data.layouts import question_layouts
from sleuth.data.questions import normalised_question, require_few, require_questions, task_from_row
from sleuth.data.rows import rows_and_faults
from sleuth.types import Document, SleuthError, Task

MAX_EXAMPLES = 5
"""Messages kept of each kind of finding; all are counted."""
Item = TypeVar("Item")
Placed = Sequence[tuple[str, Item]]
"""Rows, each with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The number of findings and the messages of the first few: `Findings(count=9, first=("q.jsonl:3: ...",))`."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings in `rows` rows: `malformed` ones, and those with the id of an earlier row; a run refuses both. In
    `overlap` is what the other data has too; None without other data. `sources` counts rows by source."""

    rows: int
    malformed: Findings
    repeated_ids: Findings
    overlap: Findings | None
    sources: dict[str, int]

    @property
    def refused(self) -> int:
        """The number of rows for which a run would refuse the data."""
        return self.malformed.count + self.repeated_ids.count


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport(Report):
    """The findings in questions.

    `repeated_questions` repeat an earlier question up to case, punctuation and spaces. `empty_answers` are golden
    answers that normalise to nothing, which no answer in words can match. `tool_outputs` counts rows with a tool output
    to refine; `unknown_citations` are those whose own answer cites an id that the tool output lacks. `unanswered` have
    no golden answers, which only rewards of one's own accept. `info` counts the rows with each column that only code of
    one's own reads.
    """

    repeated_questions: Findings
    empty_answers: Findings
    tool_outputs: int
    unknown_citations: Findings
    unanswered: Findings
    info: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReport(Report):
    """The findings in texts.

    `repeated_texts` equal an earlier text up to white space; a run skips them. `altered` are texts whose copy with
    thoughts differs from the text, so that a run ignores these thoughts. `parts` counts documents by the purpose of
    their origin, `cut` those that mark where their ending begins; `thoughts` is the total number of thoughts.
    """

    repeated_texts: Findings
    altered: Findings
    characters: int
    parts: dict[str, int]
    cut: int
    thoughts: int


def check_data(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> DataReport:
    """The findings in a file of questions, or in every set of a folder; `progress` gets the number of rows read."""
    tasks, malformed = _read(tasks_and_faults(data), progress)
    others = None if against is None else tasks_and_faults(against)
    return DataReport(
        rows=len(tasks) + malformed.count,
        malformed=malformed,
        repeated_ids=_repeated(tasks, lambda task: task.id, lambda task: f"id {task.id!r}"),
        repeated_questions=_repeated(tasks, _words, lambda task: f"question {task.question!r}"),
        empty_answers=_findings(
            f"{where}: golden answer {answer!r} is empty after normalisation"
            for where, task in tasks
            for answer in task.golden_answers
            if not normalise(answer)
        ),
        overlap=_overlap(tasks, others, _words, lambda task: repr(task.question)),
        sources=dict(Counter(task.source for _, task in tasks).most_common()),
        tool_outputs=sum(task.evidence is not None for _, task in tasks),
        unanswered=_findings(
            f"{where}: question {task.id!r}"
            for where, task in tasks
            if not task.golden_answers and task.evidence is None
        ),
        info=dict(Counter(column for _, task in tasks for column in task.info).most_common()),
        unknown_citations=_findings(
            f"{where}: the answer cites {', '.join(unknown)}"
            for where, task in tasks
            if (unknown := [id_ for layout in question_layouts() for id_ in layout.doubtful_citations(task)])
        ),
    )


def check_text(
    data: Path, against: Path | None = None, progress: Callable[[int], None] = lambda done: None
) -> TextReport:
    """The findings in text data; `progress` gets the number of rows read."""
    documents, malformed = _read(documents_and_faults(data), progress)
    others = None if against is None else documents_and_faults(against)
    parts = Counter(part_of(document.origin) for _, document in documents)
    return TextReport(
        rows=len(documents) + malformed.count,
        malformed=malformed,
        repeated_ids=_repeated(documents, lambda document: document.id, lambda document: f"id {document.id!r}"),
        repeated_texts=_repeated(documents, _digest, lambda document: f"the text of {document.id!r}"),
        overlap=_overlap(documents, others, _digest, lambda document: f"the text of {document.id!r}"),
        altered=_findings(
            f"{where}: `augmented_text` without its thoughts is not the text of {document.id!r}"
            for where, document in documents
            if document.altered
        ),
        characters=sum(len(document.text) for _, document in documents),
        parts={part: parts[part] for part in PARTS},
        sources=dict(Counter(document.source for _, document in documents).most_common()),
        cut=sum(document.cut is not None for _, document in documents),
        thoughts=sum(len(document.thoughts) for _, document in documents),
    )


def tasks_and_faults(data: Path) -> Iterator[tuple[str, Task | SleuthError]]:
    """(place, task or error) for every row of a file or of the sets of a folder."""
    sets = sets_in(data)
    if data.is_dir() and not sets:
        raise SleuthError(
            f"{data}: holds no test sets; should be a folder with a folder for each, such as nq/test.jsonl"
        )
    for name, file in (sets or {"": ""}).items():
        for at, (where, row) in enumerate(rows_and_faults(local_file(data / file if file else data))):
            if at == 0:
                require_questions(row, where)
            require_few(at + 1, where)
            yield where, row if isinstance(row, SleuthError) else _task(row, where, name)


def _task(row: Any, where: str, set_name: str) -> Task | SleuthError:
    """The task as a suite would load it."""
    try:
        task = task_from_row(row, where, answered=False)
    except SleuthError as error:
        return error
    return replace(task, id=f"{set_name}/{task.id}", source=set_name) if set_name else task


def _words(task: Task) -> Hashable:
    return normalised_question(task.question)


def _digest(document: Document) -> Hashable:
    return text_digest(document.text)


def _read(
    rows: Iterable[tuple[str, Item | SleuthError]], progress: Callable[[int], None]
) -> tuple[list[tuple[str, Item]], Findings]:
    """The rows that can be read, and the faults of the others."""
    read: list[tuple[str, Item]] = []
    faults: list[str] = []
    for done, (where, row) in enumerate(rows, start=1):
        progress(done)
        if isinstance(row, SleuthError):
            faults.append(str(row) if len(faults) < MAX_EXAMPLES else "")
        else:
            read.append((where, row))
    return read, _findings(faults)


def _repeated(rows: Placed[Item], key: Callable[[Item], Hashable], name: Callable[[Item], str]) -> Findings:
    """The rows with the key of an earlier one."""
    places: dict[Hashable, str] = {}
    repeated: list[str] = []
    for where, row in rows:
        if (first := places.setdefault(key(row), where)) is not where:
            repeated.append(f"{where}: {name(row)} repeats that of {first}")
    return _findings(repeated)


def _overlap(
    rows: Placed[Item],
    others: Iterable[tuple[str, Item | SleuthError]] | None,
    key: Callable[[Item], Hashable],
    name: Callable[[Item], str],
) -> Findings | None:
    """The rows with the key of one of the others."""
    if others is None:
        return None
    places = {key(row): where for where, row in others if not isinstance(row, SleuthError)}
    return _findings(f"{where}: {name(row)} is also at {places[key(row)]}" for where, row in rows if key(row) in places)


def _findings(messages: Iterable[str]) -> Findings:
    lines = list(messages)
    return Findings(count=len(lines), first=tuple(lines[:MAX_EXAMPLES]))
