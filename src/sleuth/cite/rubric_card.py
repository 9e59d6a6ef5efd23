"""The README of a file of rows with a teacher's criteria, in markdown, with all figures computed from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth import __version__
from sleuth.evaluation.intervals import Measured, share

Row = Mapping[str, Any]
SEPARATE = "rubrics_separate"
"""The key of a row with what its criteria told apart, by the way of spoiling; absent if no judge tried them."""


def separated_shares(separated: Sequence[Mapping[str, bool]]) -> dict[str, Measured]:
    """By the way of spoiling an answer: the share of good answers whose criteria scored higher."""
    ways = dict.fromkeys(way for row in separated for way in row)
    return {way: share([float(row[way]) for row in separated if way in row]) for way in ways}


def rubric_card(
    name: str,
    rows: Sequence[Row],
    left_out: Sequence[Row],
    *,
    teacher: str,
    source: str,
    source_sha256: str,
    prompt_sha256: str,
    judge: str | None,
) -> str:
    """The card of the kept `rows` of the file `source`; those `left_out` had criteria that distinguish too little."""
    made = f"{len(rows):,} rows of `{source}` with criteria by `{teacher}`, made with Sleuth {__version__}."
    facts = _facts(rows) | {
        f"{source}, sha256": f"`{source_sha256}`",
        "prompt of the teacher, sha256": f"`{prompt_sha256}`",
    }
    lines = [f"# {name}", "", made, "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())]
    lines += ["", *_trials([*rows, *left_out], len(left_out), judge)]
    lines += ["", "The rows hold text of their source, under whatever licence that has."]
    return "\n".join(lines) + "\n"


def _facts(rows: Sequence[Row]) -> dict[str, str]:
    kinds = {"positive_rubrics": "wanted criteria a row", "negative_rubrics": "unwanted criteria a row"}
    counts = {words: [len(row["rubrics"][kind]) for row in rows] for kind, words in kinds.items()}
    answers = sum(bool(row.get("answer")) for row in rows)
    return {words: f"{fmean(found):.2f}" for words, found in counts.items()} | {"rows with an answer": f"{answers:,}"}


def _trials(rows: Sequence[Row], left_out: int, judge: str | None) -> list[str]:
    shares = separated_shares([row[SEPARATE] for row in rows if SEPARATE in row])
    if not shares:
        return ["No judge tried these criteria."]
    by = f" by the judge `{judge}`" if judge is not None else ""
    tried = f"The criteria were tried{by} on each row's own answer and on spoiled ones."
    return [
        f"{tried} {left_out:,} rows were left out, whose criteria score fewer than half of these lower.",
        "",
        "| an answer spoiled so | scored below the row's own, of so many |",
        "|---|---|",
        *(f"| {way.replace('_', ' ')} | {found.formatted('.2f')} of {found.n:,} |" for way, found in shares.items()),
    ]
