"""Prompts and responses with golden answers, for checking scorers, and where scorers disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from sleuth.data.rows import Row, read_rows, texts_of
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
    for key in ("prompt", "response"):
        if not isinstance(row.get(key), str):
            found = type(row[key]).__name__ if key in row else "none"
            raise SleuthError(f"{where}: `{key}` should be a string, found {found}")
    answers = texts_of(row.get("golden_answers"), "golden_answers", where)
    if not answers:
        raise SleuthError(f'{where}: `golden_answers` should be a list of strings such as ["Tarn"]')
    return ScorerCase(id=id_, prompt=row["prompt"], response=row["response"], golden_answers=answers)


Scores = Mapping[str, float | None]
"""The scores of one case by scorer: `{"strict": 0.0, "search_r1": 1.0}`; None is missing."""

TOLERANCE = 1e-9


def disagreement_examples(scores: Sequence[Scores]) -> list[int]:
    """Indices of cases on which scorers disagree: one of each pattern of scores, the commonest pattern first."""
    patterns: dict[tuple[float | None, ...], list[int]] = {}
    for index, case in enumerate(scores):
        values = tuple(case.values())
        if any(_differ(one, other) for one, other in combinations(values, 2)):
            patterns.setdefault(values, []).append(index)
    return [indices[0] for indices in sorted(patterns.values(), key=len, reverse=True)]


def _differ(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) > TOLERANCE
