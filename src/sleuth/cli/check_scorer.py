"""`sleuth check scorer`: the same cases under every scorer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.tables import Column, print_columns

if TYPE_CHECKING:
    from sleuth.data.scorer_cases import ScorerCase
    from sleuth.rewards.scorers.scorer import Scores

SHOWN_CASES = 8
"""Cases to show."""
TAIL = 160
"""Last characters of a response to show."""


def check_scorer(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="CASES.jsonl", help="Rows of id, prompt, response and golden_answers.", show_default=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per case.")] = False,
) -> None:
    """Score the same cases by every scorer and show disagreements."""
    from sleuth.cli.progress import progress_bar
    from sleuth.data.scorer_cases import load_scorer_cases
    from sleuth.rewards.scorers import SCORERS
    from sleuth.rewards.scorers.scorer import transcript_from_text

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
    from rich.console import Console

    from sleuth.rewards.scorers.scorer import disagreement_examples

    console = Console(highlight=False)
    _print_scorers(scores)
    console.print(f"of {len(scores):,} cases, how many change their score between two scorers")
    _print_changes(scores)
    places = disagreement_examples(scores)
    if not places:
        console.print(f"all scorers agree on all {len(cases):,} cases")
        return
    shown = places[:SHOWN_CASES]
    console.print(f"cases that scorers disagree on, one of each kind ({len(shown)} of {len(places)} kinds)\n")
    for at in shown:
        case = cases[at]
        verdicts = ", ".join(f"{name} {_number(value)}" for name, value in scores[at].items())
        start = "..." if len(case.response) > TAIL else ""
        console.print(f"{case.id}: {verdicts}", style="bold", markup=False, soft_wrap=True)
        console.print(f"    golden: {' | '.join(case.golden_answers)}", markup=False, soft_wrap=True)
        console.print(f"    ends:   {start}{' '.join(case.response[-TAIL:].split())}\n", markup=False, soft_wrap=True)


def _print_scorers(scores: Sequence[Scores]) -> None:
    """What each scorer reads and its mean score."""
    from sleuth.rewards.scorers import SCORERS

    known = {name: [value for case in scores if (value := case[name]) is not None] for name in SCORERS}
    means = [f"{sum(values) / len(values):.3f}" if values else "missing" for values in known.values()]
    columns = [
        Column(heading="reads", cells=[scorer.view.label for scorer in SCORERS.values()], is_text=True),
        Column(heading="mean", cells=means),
        Column(heading="scored", cells=[f"{len(values):,}" for values in known.values()]),
    ]
    print_columns([f"{number} {name}" for number, name in enumerate(SCORERS, start=1)], columns, heading="scorer")


def _print_changes(scores: Sequence[Scores]) -> None:
    """The number of cases whose score differs between two scorers, numbered as in the table above."""
    from sleuth.rewards.scorers.scorer import disagreement_counts

    changed, names = disagreement_counts(scores), list(scores[0])
    columns = []
    for number, other in enumerate(names, start=1):
        counts = [changed.get((one, other), changed.get((other, one))) for one in names]
        cells = ["" if count is None else f"{count:,}" for count in counts]
        columns.append(Column(heading=str(number), cells=cells))
    print_columns([str(number) for number in range(1, len(names) + 1)], columns)


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"
