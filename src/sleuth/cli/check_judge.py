"""`sleuth check judge`: may this judge's verdicts be paid for?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sleuth.cli.heavy import import_heavy

if TYPE_CHECKING:
    from sleuth.metrics.exam_card import ExamCard
    from sleuth.metrics.intervals import Measured


def check_judge(file: Path, as_json: bool) -> None:
    """Examine the judge of a file on questions with known answers and print its card; exit status 1 where it fails."""
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe.parts import load_judge

    recipe = load_judge(file, missing_inputs)

    import_heavy()
    from sleuth.cli.watching import watched
    from sleuth.evaluation.judge_exam import take_exam
    from sleuth.factories import judge_of

    opened = judge_of(recipe)
    with watched("exam") as progress:
        card = take_exam(opened, pairs=True, progress=progress)
    below = recipe.least_accuracy is not None and card.accuracy < recipe.least_accuracy
    if as_json:
        typer.echo(json.dumps(card.as_json()))
    else:
        _print(card)
        if below:
            typer.echo(f"below least_accuracy = {recipe.least_accuracy}: a recipe with this judge would not be trained")
    if below or not card.passed:
        raise typer.Exit(1)


def _print(card: ExamCard) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(card.judge, markup=False)
    marks = Table("judged right", box=box.SIMPLE_HEAD, pad_edge=False)
    marks.add_column("of cases", justify="right")
    marks.add_column("of pairs", justify="right")
    for kind in dict.fromkeys([*card.cases, *card.pairs]):
        marks.add_row(kind.replace("_", " "), _shown(card.cases.get(kind)), _shown(card.pairs.get(kind)))
    console.print(marks)
    swayed = Table("swayed by", "effect on a score, 0 is none", box=box.SIMPLE_HEAD, pad_edge=False)
    effects = {"position": card.position, "length": card.length, "instructions": card.obedience}
    for name, effect in effects.items():
        swayed.add_row(name, _shown(effect))
    console.print(swayed)
    console.print(f"right about claims, each kind alike: {card.accuracy:.3f}")
    console.print(f"another verdict when asked again: {_shown(card.changed)}")
    console.print(f"no verdict: {_shown(card.silent)}")
    console.print(f"{card.questions:,} questions, {card.calls:,} calls, {card.seconds:.1f} seconds")
    for line in card.faults:
        console.print(f"this judge {line}")
    if card.weak:
        console.print(f"this judge is too often wrong about: {', '.join(card.weak)}", markup=False)
    console.print("passed" if card.passed else "failed: its verdicts should not be paid for", style="bold")


def _shown(figure: Measured | None) -> str:
    """`0.94 (0.80 to 0.98)`; nothing where nothing was measured."""
    return "" if figure is None else figure.formatted(".2f", unmeasured="")
