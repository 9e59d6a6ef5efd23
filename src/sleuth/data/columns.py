"""Columns by the names that data sets give them, as those of our layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sleuth.data.rows import Row, listed
from sleuth.types import SleuthError

IDS = ("id", "_id", "qid")
QUESTIONS = ("question", "query")
ANSWERS = ("golden_answers", "answers", "answer")
TEXTS = ("contents", "text", "content", "passage")
MAX_ID = 10_000
"""Characters of an id, which is printed and repeated."""
COLUMNS = (*IDS, *QUESTIONS, *ANSWERS)
"""The columns of questions that are read from a parquet file."""


def question_row(row: Row) -> Row:
    """A question with its answers in our layout. Answers may be a list, one text or number, or SQuAD's
    `{"text": [...]}`; numbers become texts."""
    question, answers = _first(row, QUESTIONS), _first(row, ANSWERS)
    found = dict(row)
    if question is not None:
        found["question"] = row[question]
    if answers is not None:
        found["golden_answers"] = _texts(row[answers])
    if row.get("gold_ids") is not None:
        found["gold_ids"] = _texts(row["gold_ids"])
    return found


def id_of(row: Row, where: str) -> Any:
    """The id of a row as text: `7` and `"7"` are `"7"`, and without one `row_7` in row 7."""
    given = next((row[name] for name in IDS if row.get(name) is not None), None)
    if given is None:
        return f"row_{where.rpartition(':')[2]}"
    if isinstance(given, str) and len(given) > MAX_ID:
        raise SleuthError(f"{where}: an id of {len(given):,} characters; at most {MAX_ID:,} are read")
    return _text(given)


def text_column(row: Row) -> str | None:
    """The column of a passage's text; None if the row has none."""
    return _first(row, TEXTS)


def question_in(row: Row) -> str | None:
    """The column of a question; None if the row has none."""
    return _first(row, QUESTIONS)


def require_question(row: Row, where: str) -> None:
    """Raises SleuthError for a passage in place of a question."""
    if _first(row, QUESTIONS) is None and (text := text_column(row)) is not None:
        raise SleuthError(
            f"{where}: a passage, not a question: it has `{text}` and no `question`; a corpus is for `sleuth index`, "
            "or for --corpus of `sleuth init`"
        )


def require_passage(row: Row, where: str) -> None:
    """Raises SleuthError for a question in place of a passage."""
    if (question := _first(row, QUESTIONS)) is not None and text_column(row) is None:
        raise SleuthError(
            f"{where}: a question, not a passage: it has `{question}` and no `text`; questions are for `sleuth check "
            "data`, or for --questions of `sleuth init`"
        )


def renamed(rows: Iterable[tuple[str, Any]], columns: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
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


def _first(row: Row, names: Sequence[str]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _texts(value: Any) -> Any:
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_text(one) for one in value]
    return _text(value)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
