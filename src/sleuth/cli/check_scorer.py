"""`sleuth check scorer`: the same cases under every scorer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.terminal.tables import Column, print_columns
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.data.rows import Row

SHOWN_CASES = 8
"""Cases to show."""
TAIL = 160
"""Last characters of a response to show."""
TOLERANCE = 1e-9
Scores = Mapping[str, float | None]
"""The scores of one case by scorer: `{"strict": 0.0, "search_r1": 1.0}`; None is missing."""


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
    from sleuth.data.rows import read_rows

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
    from sleuth.data.rows import texts_of

    answers = texts_of(row.get("golden_answers"), "golden_answers", where)
    if not answers:
        raise SleuthError(f'{where}: `golden_answers` should be a list of strings such as ["Tarn"]')
    return ScorerCase(id=id_, prompt=row["prompt"], response=row["response"], golden_answers=answers)


def check_scorer(
    file: Annotated[
        Path,
        Argument(metavar="CASES.jsonl", help="Rows of id, prompt, response and golden_answers.", show_default=False),
    ],
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per case.")] = False,
) -> None:
    """Score the same cases by every scorer and show disagreements."""
    from sleuth.answers.scorers import SCORERS
    from sleuth.answers.scorers.scorer import transcript_from_text
    from sleuth.runs.progress import progress_bar

    cases = load_scorer_cases(file)
    scores: list[Scores] = []
    with progress_bar("score") as progress:
        for case in cases:
            transcript = transcript_from_text(case.prompt, case.response)
            scores.append(
                {name: scorer.score_transcript(transcript, case.golden_answers) for name, scorer in SCORERS.items()}
            )
            progress(len(scores), len(cases))
    if as_json:
        for case, found in zip(cases, scores, strict=True):
            typer.echo(json.dumps({"id": case.id, "scores": found}))
    else:
        _print_tables(cases, scores)


def _print_tables(cases: Sequence[ScorerCase], scores: Sequence[Scores]) -> None:
    """Prints what each scorer reads and its mean score, and cases on which scorers disagree."""
    from sleuth.answers.scorers import SCORERS
    from sleuth.runs.progress import Console

    console = Console()
    known = {name: [value for case in scores if (value := case[name]) is not None] for name in SCORERS}
    means = [f"{sum(values) / len(values):.3f}" if values else "missing" for values in known.values()]
    columns = [
        Column(heading="reads", cells=[scorer.view.label for scorer in SCORERS.values()], is_text=True),
        Column(heading="mean", cells=means),
        Column(heading="scored", cells=[f"{len(values):,}" for values in known.values()]),
    ]
    print_columns(list(SCORERS), columns, heading="scorer")
    if not (places := disagreement_examples(scores)):
        console.print(f"all scorers agree on all {len(cases):,} cases")
        return
    shown = places[:SHOWN_CASES]
    console.print(f"cases that scorers disagree on, one of each kind ({len(shown)} of {len(places)} kinds)\n")
    for at in shown:
        case = cases[at]
        verdicts = ", ".join(f"{name} {_number(value)}" for name, value in scores[at].items())
        start = "..." if len(case.response) > TAIL else ""
        console.print(f"{case.id}: {verdicts}", style="bold", soft_wrap=True)
        console.print(f"    golden: {' | '.join(case.golden_answers)}", soft_wrap=True)
        console.print(f"    ends:   {start}{' '.join(case.response[-TAIL:].split())}\n", soft_wrap=True)


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"


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
