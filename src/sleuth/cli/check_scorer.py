"""`sleuth check scorer`: the same cases under every scorer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.terminal.tables import Column, print_columns

if TYPE_CHECKING:
    from sleuth.answers.scorers.cases import ScorerCase, Scores

SHOWN_CASES = 8
"""Cases to show."""
TAIL = 160
"""Last characters of a response to show."""


def check_scorer(
    file: Annotated[
        Path,
        Argument(metavar="CASES.jsonl", help="Rows of id, prompt, response and golden_answers.", show_default=False),
    ],
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per case.")] = False,
) -> None:
    """Score the same cases by every scorer and show disagreements."""
    from sleuth.answers.scorers import SCORERS
    from sleuth.answers.scorers.cases import load_scorer_cases
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
    from sleuth.answers.scorers.cases import disagreement_examples
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
