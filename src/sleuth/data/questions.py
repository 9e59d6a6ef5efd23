"""Loads questions with golden answers, in the layouts of Search-R1, FlashRAG and refiners, as tasks."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.hub import local_file
from sleuth.data.layouts import (
    ANSWERS,
    IDS,
    QUESTIONS,
    TEXTS,
    QuestionLayout,
    first_column,
    id_of,
    layout_of,
    question_layouts,
    question_row,
    renamed,
    require_question,
)
from sleuth.data.rows import (
    Row,
    checked_text,
    listed,
    read_rows,
    rows_and_faults,
    table_in,
    text_of,
    texts_of,
    valid_row,
)
from sleuth.recipe.data import EvalQuestionsRecipe, QuestionsRecipe
from sleuth.types import Info, Rubric, SleuthError, Task

NAMED = 5
"""Rows with a problem that a message names; all are counted, up to `MAX_PROBLEMS`."""
MAX_PROBLEMS = 10_000
"""After which nothing more is read of a file."""
MAX_QUESTIONS = 2_000_000
"""Questions of a file, of which each takes half a kilobyte or more."""


def load_questions(
    path: Path, *, with_prompt: bool = False, names: Mapping[str, str] | None = None, answered: bool = True
) -> list[Task]:
    """The tasks of a .jsonl, .jsonl.gz, .parquet, .csv, .tsv or .json file, local or on the hub
    (`hf://OWNER/NAME/FILE`), in its order.

    Rows have `id`, `question` and `golden_answers`, and may have `gold_ids` (corpus ids), `type` and `data_source`:
    `{"id": "q7", "question": "where was Ada Voss born?", "golden_answers": ["Tarn"], "gold_ids": ["17"]}`; other names
    of these columns are in `sleuth.data.layouts`, and `names` adds some: `{"question": "prompt"}`. The layouts of the
    families, such as `sleuth.search.rows` and `sleuth.cite.rows`, are read too; what else a row has is the task's
    `info`. `with_prompt` loads each row's own prompt. Unless `answered`, rows need no golden answers. Raises
    SleuthError with file:line for the first few malformed rows and repeated ids, with the number of all, and for a file
    without rows.
    """
    tasks: dict[str, Task] = {}
    problems: list[str] = []
    rows = 0
    rows_read = rows_and_faults(local_file(path), without="" if with_prompt or names else "prompt")
    for where, row in renamed(rows_read, names or {}):
        rows += 1
        if rows == 1:
            require_questions(row, where)
        try:
            task = task_from_row(valid_row(row), where, with_prompt=with_prompt, answered=answered)
            require_few(rows, where)
        except SleuthError as error:
            problems += error.args
            if len(problems) >= MAX_PROBLEMS or rows > MAX_QUESTIONS:
                break
            continue
        if task.id in tasks:
            problems.append(f"{where}: id {task.id!r} was used by an earlier question; ids should be unique")
        tasks.setdefault(task.id, task)
    if problems:
        raise SleuthError(*first_problems(problems, rows, path))
    if not tasks:
        raise SleuthError(f"{path}: no questions in this file")
    return list(tasks.values())


def require_questions(row: Row | SleuthError, where: str) -> None:
    """Raises SleuthError if the first row of a file shows that it is a corpus."""
    if not isinstance(row, SleuthError) and layout_of(row) is None:
        require_question(row, where)


def require_few(rows: int, where: str) -> None:
    """Raises SleuthError if a file has more rows than questions may be in memory."""
    if rows > MAX_QUESTIONS:
        raise SleuthError(f"{where}: more than {MAX_QUESTIONS:,} questions; split the file")


def first_problems(problems: Sequence[str], rows: int, path: Path) -> list[str]:
    """The first few problems, and the number of all of them if there are more; one line if all rows have the same."""
    reasons = {re.sub(r"^.*?:\d+: ", "", problem) for problem in problems}
    stopped = "; the rest was not read" if len(problems) >= MAX_PROBLEMS else ""
    if len(problems) == rows > 1 and len(reasons) == 1:
        return [f"{path}: in all {rows:,} rows: {reasons.pop()}{stopped}"]
    more = f"{path}: {len(problems):,} of {rows:,} rows have a problem; the first {NAMED} are above{stopped}"
    return [*problems[:NAMED], *([more] if len(problems) > NAMED else [])]


READ = ("gold_ids", "type", "data_source", "prompt", "rubrics")
"""Columns of questions besides id, question and answers."""


def columns_of() -> tuple[str, ...]:
    """The columns that tasks are read from in a parquet file, without those of their `info`."""
    others = [column for layout in question_layouts() for column in layout.columns]
    return (*IDS, *QUESTIONS, *ANSWERS, *TEXTS, *READ, *others)


def unread(row: Row, layout: QuestionLayout | None) -> dict[str, Any]:
    """The columns of which no other field of the task has all."""
    named = (first_column(row, names) for names in (IDS, QUESTIONS, ANSWERS))
    read = {*READ, *named, *(layout.columns if layout is not None else ())}
    return {key: value for key, value in row.items() if key not in read}


def task_from_row(row: Row, where: str, *, with_prompt: bool = False, answered: bool = True) -> Task:
    """One row as a task; error messages begin with `where`. Lists may be numpy arrays, as in data frames."""
    layout = layout_of(row)
    try:
        info = Info(unread(row, layout))
    except SleuthError as error:
        raise SleuthError(f"{where}: {error}") from None
    message_of = layout.message_of if layout is not None and layout.message_of is not None else _message_of
    prompt = message_of(row, where) if with_prompt else ""
    row = layout.standard_row(row, where) if layout is not None else row
    evidence = layout.evidence_of(row, where) if layout is not None and layout.evidence_of is not None else None
    row = question_row(row) if evidence is None else row
    return Task(
        id=checked_text(id_of(row, where), "id", where) if evidence is None else text_of(row, "id", where),
        question=text_of(row, "question", where).strip(),
        golden_answers=texts_of(row.get("golden_answers"), "golden_answers", where)
        if evidence or not answered
        else _answers(row, where),
        gold_passages=() if evidence else texts_of(row.get("gold_ids"), "gold_ids", where),
        kind=_label(row, "type", where),
        source=_label(row, "data_source", where),
        prompt=prompt,
        evidence=evidence,
        reference=_label(row, "answer", where) if evidence else "",
        rubrics=rubrics_of(row, where),
        info=info,
    )


def questions_hash(tasks: Iterable[Task]) -> str:
    """The sha256 of all fields of the tasks, in order: evaluations with equal hashes have the same questions."""
    digest = hashlib.sha256()
    for task in tasks:
        fields = [task.id, task.question, task.golden_answers, task.gold_passages, task.kind, task.source]
        fields += [task.prompt] if task.prompt else []
        if task.evidence or task.continuation or task.rubrics:
            fields.append({key: value for key, value in asdict(task).items() if key != "info"})
        fields += [{"info": dict(task.info)}] if task.info else []
        digest.update(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def _answers(row: Row, where: str) -> tuple[str, ...]:
    answers = texts_of(row.get("golden_answers"), "golden_answers", where)
    if not answers:
        if "golden_answers" in row:
            raise SleuthError(f'{where}: `golden_answers` is empty; expected a list of strings such as ["Tarn"]')
        raise SleuthError(
            f'{where}: no `golden_answers`; expected a list of strings such as ["Tarn"], or an `answer`; the row has '
            f"{listed(row)}"
        )
    return answers


def _message_of(row: Row, where: str) -> str:
    """The one user message of the row's `prompt`, unchanged: the published instruction with the question."""
    given: Any = row.get("prompt")
    is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    messages: list[Any] = [*given] if is_list else [given]
    if not all(isinstance(message, Mapping) for message in messages):
        raise SleuthError(
            f'{where}: `prompt` should be a list of messages such as {{"role": "user", "content": "..."}}'
        )
    roles = [message.get("role") for message in messages]
    if roles != ["user"]:
        raise SleuthError(
            f"{where}: `prompt` should be one user message, found {', '.join(map(str, roles)) or 'none'}; "
            'ask_with = "question" puts the question into the prompt of the environment'
        )
    return checked_text(messages[0].get("content"), "prompt.content", where)


def rubrics_of(row: Row, where: str) -> tuple[Rubric, ...]:
    """The row's criteria, from `{"positive_rubrics": [{"title", "description"}], "negative_rubrics": [...]}`, also as
    JSON text; empty without any."""
    if not row.get("rubrics"):
        return ()
    table = table_in(row["rubrics"], "rubrics", where)
    unknown = table.keys() - {"positive_rubrics", "negative_rubrics"}
    if unknown:
        raise SleuthError(
            f"{where}: `rubrics` has {', '.join(sorted(unknown))}; expected positive_rubrics and negative_rubrics"
        )
    return (*_criteria(table, "positive_rubrics", where), *_criteria(table, "negative_rubrics", where))


def _criteria(table: Mapping[str, Any], name: str, where: str) -> Iterator[Rubric]:
    key, value = f"rubrics.{name}", table.get(name)
    if value is not None and (isinstance(value, str) or not isinstance(value, Sequence | np.ndarray)):
        raise SleuthError(f'{where}: `{key}` should be a list such as [{{"title": "...", "description": "..."}}]')
    for index, criterion in enumerate(value if value is not None else ()):
        if not isinstance(criterion, Mapping):
            raise SleuthError(f"{where}: `{key}.{index}` should have title and description, found {criterion!r:.40}")
        yield Rubric(
            title=checked_text(criterion.get("title"), f"{key}.{index}.title", where),
            description=checked_text(criterion.get("description"), f"{key}.{index}.description", where),
            wanted=name == "positive_rubrics",
        )


def _label(row: Row, key: str, where: str) -> str:
    return checked_text(row[key], key, where) if row.get(key) else ""


def select_tasks(data: QuestionsRecipe | EvalQuestionsRecipe) -> list[Task]:
    """The questions selected by a recipe's `[stage.data]` from its file; its rewards say whether they need answers."""
    assert data.questions is not None  # a suite is `sleuth.answers.suites.load_suite`'s
    tasks = load_questions(data.questions, with_prompt=data.ask_with == "prompt", answered=False)
    tasks = [task for task in tasks if not data.kinds or task.kind in data.kinds]
    if not tasks:
        raise SleuthError(f"{data.questions}: has no question of the kinds {', '.join(data.kinds)}")
    if data.skip >= len(tasks):
        raise SleuthError(f"{data.questions}: has {len(tasks):,} questions, and data.skip = {data.skip} leaves none")
    return tasks[data.skip :][: data.limit]


def named_rows(path: Path | None, tasks: Sequence[Task]) -> str:
    """The first few of tasks with their rows in the file, and how many there are more: `row 7 ('q7'), row 9 ('q9')
    and 10 more`. Without a file only their ids."""
    shown = {task.id: f"{task.id!r}" for task in tasks[:NAMED]}
    rows = read_rows(local_file(path), columns_of()) if path is not None else ()
    for where, row in rows:
        if (id_ := task_from_row(row, where, answered=False).id) in shown:
            shown[id_] = f"row {where.rpartition(':')[2]} ({id_!r})"
    more = f" and {len(tasks) - NAMED:,} more" if len(tasks) > NAMED else ""
    return ", ".join(shown.values()) + more


def question_overlap(train: Sequence[Task], test: Sequence[Task]) -> list[Task]:
    """The test tasks whose normalised question is in the training set, in their order."""
    trained = {normalised_question(task.question) for task in train}
    return [task for task in test if normalised_question(task.question) in trained]


def normalised_question(question: str) -> str:
    """The question in NFKC and lower case, with each run of punctuation and white space as one space: `Who wrote
    “Well-Known”?` gives `who wrote well known`. Symbols stay, so that `2+2` is not `2=2`."""
    lower = unicodedata.normalize("NFKC", question).lower()
    words = (" " if unicodedata.category(character).startswith("P") else character for character in lower)
    return " ".join("".join(words).split())
