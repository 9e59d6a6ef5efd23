"""`sleuth check scorer`: the same cases under every scorer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.terminal.tables import Column, print_columns
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.answers.scorers.cases import ScorerCase, Scores

SHOWN_CASES = 8
"""Cases to show."""
TAIL = 160
"""Last characters of a response to show."""


def check_scorer(
    file: Annotated[
        Path | None,
        Argument(metavar="[CASES.jsonl]", help="Rows of id, prompt, response and golden_answers.", show_default=False),
    ] = None,
    attacks: Annotated[
        bool, Option("--attacks", help="Instead of CASES: hostile answers beside honest ones, and what each is paid.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object per case; with --attacks, per attack.")
    ] = False,
) -> None:
    """Score the same cases by every scorer and show disagreements.

    With --attacks, score hostile answers to a few built-in questions by every scorer and by the rewards that judge
    claims and criteria. Exit status 1 if one is paid as much as the honest answer.
    """
    if (file is None) != attacks:
        raise SleuthError("sleuth check scorer: name either a file of cases, CASES.jsonl, or --attacks")
    if file is None:
        _check_attacks(as_json)
        return
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


def _check_attacks(as_json: bool) -> None:
    """Prints what each reward pays each attack, the honest answer first."""
    import asyncio

    from sleuth.answers.scorers import SCORERS
    from sleuth.cite.hostile import HONEST, paid_by_judged_rewards, paid_by_scorer

    paid = {name: paid_by_scorer(scorer) for name, scorer in SCORERS.items()} | asyncio.run(paid_by_judged_rewards())
    attacks = list(paid["strict"])
    if as_json:
        for attack in attacks:
            typer.echo(json.dumps({"attack": attack, "paid": {name: by[attack] for name, by in paid.items()}}))
    else:
        cells = {name: [_number(by[attack], ".2f") for attack in attacks] for name, by in paid.items()}
        columns = [Column(heading=name.replace("_", " "), cells=column) for name, column in cells.items()]
        print_columns(attacks, columns, heading="attack")
    won = []
    for name, by in paid.items():
        honest = by[HONEST]
        for attack, value in by.items():  # a missing score shows nothing
            if attack != HONEST and (value is None or honest is None or value >= honest):
                won.append(f"{name} pays {attack}")
    if won:
        typer.echo(f"error: paid no less than the honest answer: {'; '.join(won)}", err=True)
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"None of {len(attacks) - 1} attacks is paid as much as the honest answer.")


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


def _number(value: float | None, form: str = ".3g") -> str:
    return "missing" if value is None else format(value, form)
