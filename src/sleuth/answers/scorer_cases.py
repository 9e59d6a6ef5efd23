"""Prompts and responses with golden answers, for checking scorers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.rows import Row, checked_text, read_rows
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerCase:
    """`ScorerCase(id="7", prompt="Where?", response="<answer>Tarn</answer>", golden_answers=("Tarn",))`; `id` is text
    or a number, as in the file."""

    id: str | int
    prompt: str
    response: str
    golden_answers: tuple[str, ...]


def load_scorer_cases(path: Path) -> list[ScorerCase]:
    """The cases of a .jsonl, .jsonl.gz or .parquet file, in its order.

    Rows are `{"id", "prompt", "response", "golden_answers"}`; prompt and response may be empty, golden answers may be
    one string. Raises SleuthError with file:line for a malformed row, and for a file without rows.
    """
    cases = [_case(row, where) for where, row in read_rows(path)]
    if not cases:
        raise SleuthError(f"{path}: no cases in this file")
    return cases


def _case(row: Row, where: str) -> ScorerCase:
    id_ = row.get("id")
    if not isinstance(id_, str | int) or isinstance(id_, bool):
        raise SleuthError(f"{where}: `id` should be a string or a whole number")
    return ScorerCase(
        id=id_,
        prompt=_text(row, "prompt", where),
        response=_text(row, "response", where),
        golden_answers=_golden_answers(row.get("golden_answers"), where),
    )


def _text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        found = type(value).__name__ if key in row else "none"
        raise SleuthError(f"{where}: `{key}` should be a string, found {found}")
    return value


def _golden_answers(value: Any, where: str) -> tuple[str, ...]:
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, Sequence | np.ndarray) or not len(answers):
        raise SleuthError(f'{where}: `golden_answers` should be a list of strings such as ["Tarn"]')
    return tuple(checked_text(answer, "golden_answers", where) for answer in answers)
