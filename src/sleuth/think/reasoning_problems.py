"""Loads reasoning problems in the layouts of four test sets:

- `gsm8k` (arXiv:2110.14168): `question`, and `answer`, which ends with `#### 72`;
- `math_500` (arXiv:2305.20050): `problem`, `answer`, `unique_id`, `subject`;
- `gpqa_diamond` (arXiv:2311.12022): `Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Record ID`, in csv too;
- `olympiad_bench` (arXiv:2402.14008): `question`, `final_answer` (a list), `is_multiple_answer`, `id`; rows with
  pictures and proofs without an answer are skipped.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from sleuth.data.hub import local_file
from sleuth.data.rows import Row, checked_text, read_rows, text_of, texts_of
from sleuth.host.variables import ROW
from sleuth.types import SleuthError

Layout = Literal["gsm8k", "math_500", "gpqa_diamond", "olympiad_bench"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
COLUMNS = (
    *("id", "question", "answer", "problem", "unique_id", "subject", "final_answer", "is_multiple_answer", "modality"),
    *("image_1", "subfield", "Question", "Correct Answer", *WRONG, "Record ID", "Subdomain"),
)

CSV_FORMAT = "should be UTF-8 with a header of names and as many cells per row, quoted if they hold a comma or line end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`Problem(id="math_500/7", text="What is 1+1?", answer="2", form="boxed")`. With `choices`, `answer` is the letter
    of the right one; with `several` it is a list in any order. `kind` only groups figures."""

    id: str
    text: str
    answer: str
    form: Literal["number", "boxed", "choice"]
    kind: str = ""
    choices: tuple[str, ...] = ()
    several: bool = False

    @property
    def guess(self) -> float:
        """The probability of a right guess."""
        return 1 / len(self.choices) if self.choices else 0.0


def load_problems(layout: Layout, path: Path, limit: int | None = None) -> list[Problem]:
    """The first `limit` problems of a file, local or on the hub. Raises SleuthError with file:line for a malformed row,
    and for a repeated id or a file without problems."""
    problems: dict[str, Problem] = {}
    parsed = (problem for where, row in _rows(path) if (problem := READERS[layout](row, where)) is not None)
    for problem in islice(parsed, limit):
        if problem.id in problems:
            raise SleuthError(f"{path}: id {problem.id!r} was used by an earlier problem; ids should be unique")
        problems[problem.id] = problem
    if not problems:
        raise SleuthError(f"{path}: has no problem in the layout {layout!r}")
    return list(problems.values())


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    file = local_file(path)
    if file.suffix != ".csv":
        yield from read_rows(file, COLUMNS)
        return
    yield from _csv_rows(file)


def _csv_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """(file:row, row) of a csv file; rows are counted, since a cell may span lines. Raises SleuthError for invalid
    csv."""
    if not file.is_file():
        raise SleuthError(f"{file}: no such file")
    csv.field_size_limit(ROW.bytes)
    lines = csv.DictReader(io.StringIO(_csv_text(file), newline=""))
    try:
        for number, row in enumerate(lines, start=2):
            if lines.restkey in row:
                raise SleuthError(f"{file}:{lines.line_num}: more cells than the header has; {CSV_FORMAT}")
            yield f"{file}:{number}", row
    except csv.Error as error:  # in the row after the last one that was read
        raise SleuthError(f"{file}:{lines.line_num + 1}: not csv ({error}); {CSV_FORMAT}") from None


def _csv_text(file: Path) -> str:
    content = file.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SleuthError(f"{file}:{line}: not UTF-8 text; {CSV_FORMAT}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SleuthError(f"{file}:{line}: a NUL byte, which no text holds; {CSV_FORMAT}")
    return text


def _gsm8k(row: Row, where: str) -> Problem:
    reasoning, separator, answer = text_of(row, "answer", where).rpartition("####")
    if not separator or not answer.strip():
        raise SleuthError(f"{where}: `answer` should end with #### and a number, found {reasoning[-40:]!r}")
    return Problem(
        id=_id(row.get("id"), "gsm8k", where),
        text=text_of(row, "question", where).strip(),
        answer=answer.strip(),
        form="number",
    )


def _math_500(row: Row, where: str) -> Problem:
    return Problem(
        id=_id(row.get("unique_id"), "math_500", where),
        text=text_of(row, "problem", where).strip(),
        answer=text_of(row, "answer", where).strip(),
        form="boxed",
        kind=str(row.get("subject") or ""),
    )


def _gpqa_diamond(row: Row, where: str) -> Problem:
    id_ = _id(row.get("Record ID"), "gpqa_diamond", where)
    right = text_of(row, "Correct Answer", where).strip()
    choices = [right, *(text_of(row, key, where).strip() for key in WRONG)]
    order = random.Random(f"choices {id_}").sample(range(len(choices)), len(choices))  # the same for every run
    return Problem(
        id=id_,
        text=text_of(row, "Question", where).strip(),
        answer="ABCD"[order.index(0)],
        form="choice",
        kind=str(row.get("Subdomain") or ""),
        choices=tuple(choices[index] for index in order),
    )


def _olympiad_bench(row: Row, where: str) -> Problem | None:
    answers = texts_of(row.get("final_answer"), "final_answer", where)
    has_image = row.get("image_1") is not None or str(row.get("modality") or "Text-only") != "Text-only"
    if has_image or not answers:
        return None
    return Problem(
        id=_id(row.get("id"), "olympiad_bench", where),
        text=text_of(row, "question", where).strip(),
        answer=", ".join(answer.strip().strip("$") for answer in answers),
        form="boxed",
        kind=str(row.get("subfield") or ""),
        several=bool(row.get("is_multiple_answer")) or len(answers) > 1,
    )


def _id(given: Any, layout: Layout, where: str) -> str:
    """The id with its layout; a row without one is named by its line."""
    own = f"row_{where.rpartition(':')[2]}" if given is None else str(given)
    return f"{layout}/{checked_text(own, 'id', where)}"


READERS: Mapping[Layout, Callable[[Row, str], Problem | None]] = {
    "gsm8k": _gsm8k,
    "math_500": _math_500,
    "gpqa_diamond": _gpqa_diamond,
    "olympiad_bench": _olympiad_bench,
}
