"""Layouts of rows: columns by the names that data sets give them, and the layouts that families read
(`Family.layouts`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth import family
from sleuth.data.rows import Found, Row, listed
from sleuth.types import Evidence, SleuthError, Task, Thought

IDS = ("id", "_id", "qid")
QUESTIONS = ("question", "query")
ANSWERS = ("golden_answers", "answers", "answer")
TEXTS = ("contents", "text", "content", "passage")
MAX_ID = 10_000
"""Characters of an id, which is printed and repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLayout:
    """Rows of questions that `fits` recognises, and what makes tasks of them; `where` is file:line for messages.

    `evidence_of` returns the tool output of a standard row, which then needs no golden answers; its reference is the
    row's `answer`. `row_of` is the inverse: the standard row of a task, or None for a task of another kind.
    `doubtful_citations` are the ids that a task's own answer cites in vain.
    """

    columns: tuple[str, ...]
    """The columns read from a parquet file, besides ours."""
    fits: Callable[[Row], bool]
    standard_row: Callable[[Row, str], Row]
    """The row in our layout."""
    message_of: Callable[[Row, str], str] | None = None
    """The user message of a row; None: that of its `prompt`."""
    evidence_of: Callable[[Row, str], Evidence] | None = None
    row_of: Callable[[Task], dict[str, Any] | None] = lambda task: None
    doubtful_citations: Callable[[Task], Iterable[str]] = lambda task: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLayout:
    """Rows of texts with a `column` that contains a copy of the text with thoughts in it: `split` returns the text of
    the copy and its thoughts; None if it is a copy of another text."""

    column: str
    split: Callable[[str, str], tuple[str, tuple[Thought, ...]] | None]


def question_layouts() -> tuple[QuestionLayout, ...]:
    """The layouts of questions, in the order of the families."""
    return tuple(layout for layout in family.tables("layouts") if isinstance(layout, QuestionLayout))


def layout_of(row: Row) -> QuestionLayout | None:
    """The layout of a row; None for ours."""
    return next((layout for layout in reversed(question_layouts()) if layout.fits(row)), None)


def copy_layouts() -> list[CopyLayout]:
    """The layouts of copies with thoughts."""
    return [layout for layout in family.tables("layouts") if isinstance(layout, CopyLayout)]


def first_column(row: Row, names: Sequence[str]) -> str | None:
    """The first of these columns that the row has, such as that of its text, by `TEXTS`."""
    return next((name for name in names if row.get(name) is not None), None)


def question_row(row: Row) -> Row:
    """A question with its answers in our layout. Answers may be a list, one text or number, or SQuAD's
    `{"text": [...]}`; numbers become texts."""
    question, answers = first_column(row, QUESTIONS), first_column(row, ANSWERS)
    standard = dict(row)
    if question is not None:
        standard["question"] = row[question]
    if answers is not None:
        standard["golden_answers"] = _texts(row[answers])
    if row.get("gold_ids") is not None:
        standard["gold_ids"] = _texts(row["gold_ids"])
    return standard


def id_of(row: Row, where: str) -> Any:
    """The id of a row as text: `7` and `"7"` are `"7"`, and without one `row_7` in row 7."""
    column = first_column(row, IDS)
    if column is None:
        return f"row_{where.rpartition(':')[2]}"
    given = row[column]
    if isinstance(given, str) and len(given) > MAX_ID:
        raise SleuthError(f"{where}: an id of {len(given):,} characters; at most {MAX_ID:,} are read")
    return _text(given)


def require_question(row: Row, where: str) -> None:
    """Raises SleuthError for a passage in place of a question."""
    if first_column(row, QUESTIONS) is None and (text := first_column(row, TEXTS)) is not None:
        raise SleuthError(
            f"{where}: a passage, not a question: it has `{text}` and no `question`; a corpus is for `sleuth index`, "
            "or for --corpus of `sleuth init`"
        )


def require_passage(row: Row, where: str) -> None:
    """Raises SleuthError for a question in place of a passage."""
    if (question := first_column(row, QUESTIONS)) is not None and first_column(row, TEXTS) is None:
        raise SleuthError(
            f"{where}: a question, not a passage: it has `{question}` and no `text`; questions are for `sleuth check "
            "data`, or for --questions of `sleuth init`"
        )


def renamed(rows: Iterable[Found], columns: Mapping[str, str]) -> Iterator[Found]:
    """The rows with each column of the map under the name that it has there: `{"question": "prompt"}` reads `prompt` as
    `question`. Raises SleuthError if the first row lacks one."""
    for at, (where, row) in enumerate(rows):
        if isinstance(row, SleuthError):
            yield where, row
            continue
        if at == 0 and (absent := [given for given in columns.values() if given not in row]):
            raise SleuthError(f"{where}: no column {absent[0]}, which --column names; there are {listed(row)}")
        taken = {name: row[given] for name, given in columns.items() if given in row}
        yield where, {key: value for key, value in row.items() if key not in columns.values()} | taken


def _texts(value: Any) -> Any:
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_text(one) for one in value]
    return _text(value)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
