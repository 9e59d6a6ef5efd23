"""`sleuth sweep`: several runs that differ by a stage or two, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.metrics.intervals import Measured
    from sleuth.ranks import Ranks
    from sleuth.recipe import Recipe
    from sleuth.recipe.sweep import SweepRecipe
    from sleuth.report.arm_table import ArmRow

COLUMN = 17
"""What a figure takes of a line: `-5.10 to -4.34` and the space beside it."""
LEGEND = (
    "Intervals are of 95 %, over texts and, where there are several, over seeds; tokens are those that losses saw "
    "since the base, a mean over seeds."
)


def sweep(
    recipe: Annotated[Path, typer.Argument(help="The arms, a TOML file with [[arm]] tables.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value: STAGE.steps=50.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Holds a run folder an arm and seed. [default: runs/NAME]", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="Train this arm; more than once for several.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", metavar="N", help="Train with this seed; more than once for several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train what a table needs, and print the table; what is there already is not trained again.

    Each arm is a run folder, which `sleuth train` would come to as well. What several begin with is trained once.
    """
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe.sweep import load_sweep

    told, runs = load_sweep(recipe, overrides or (), missing_inputs, only or ())
    root = run or Path("runs") / told.name
    for name in only or ():
        if name not in runs:
            raise SleuthError(f"--arm {name}: there are {', '.join(runs)}")
    for seed in seeds or ():
        if seed not in told.seeds:
            raise SleuthError(f"--seed {seed}: the seeds of {recipe} are {', '.join(map(str, told.seeds))}")
    chosen = {name: runs[name] for name in only or runs}

    from sleuth.cli.check_sweep import require_inputs_of_sweep
    from sleuth.cli.launched import on_ranks
    from sleuth.report.arm_table import arm_folder, arm_table

    require_inputs_of_sweep(recipe, chosen)
    with on_ranks() as ranks:
        for seed, (name, one) in product(seeds or told.seeds, chosen.items()):
            _train(one, seed, ranks, [arm_folder(root, seed, arm) for arm in (name, *runs)])
        if not ranks.first:
            return
    rows = arm_table(told, root)
    if as_json:
        against = {"evaluation": told.table.evaluation, "against": told.table.against}
        typer.echo(json.dumps(against | {"arms": {row.name: row.as_json() for row in rows}}))
    else:
        _print(told, rows)


def _train(recipe: Recipe, seed: int, ranks: Ranks, places: Sequence[Path]) -> None:
    """An arm in the first of the `places`; it may take over what the others have trained."""
    from sleuth.pipeline import run_recipe
    from sleuth.runs.checkpoints import reuse_checkpoints
    from sleuth.runs.joined_folder import open_on

    seeded = recipe.model_copy(update={"seed": seed})
    with open_on(ranks, places[0], seeded) as folder:
        folder.say(f"arm {recipe.name}, seed {seed}")
        ranks.broadcast(lambda: reuse_checkpoints(folder, places[1:]))
        run_recipe(seeded, folder, ranks)


def _print(recipe: SweepRecipe, rows: Sequence[ArmRow]) -> None:
    """As many tables below each other as the terminal is narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    columns = _columns(recipe, rows)
    console = Console()
    fitting = max(1, (console.width - max((len(row.name) for row in rows), default=0)) // COLUMN)
    for begin in range(0, len(columns), fitting):
        table = Table("arm", box=box.SIMPLE_HEAD, pad_edge=False)
        some = columns[begin : begin + fitting]
        for heading, _ in some:
            table.add_column(heading, justify="right", no_wrap=True)
        for at, row in enumerate(rows):
            table.add_row(row.name, *(cells[at] for _, cells in some))
        console.print(table)
    typer.echo(f"{recipe.table.evaluation} of {recipe.name}. {LEGEND}")
    needed = [f"{row.name} {row.needed:,}" for row in rows if row.needed]
    if needed:
        typer.echo(f"Texts that would show a difference of this size in four of five cases: {', '.join(needed)}.")
    lacking = [arm.name for arm in recipe.arm if arm.name not in {row.name for row in rows}]
    if lacking:
        typer.echo(f"Not measured yet: {', '.join(lacking)}.")


def _columns(recipe: SweepRecipe, rows: Sequence[ArmRow]) -> list[tuple[str, list[str]]]:
    """Headings with their cells."""
    first, against = recipe.table.figures[0], recipe.table.against
    columns = [("seeds", [f"{len(row.seeds)}" for row in rows])]
    columns.append(("tokens", [f"{row.tokens_trained:,.0f}" for row in rows]))
    if any(row.certified is not None for row in rows):
        columns.append(("certified", [f"{row.certified or 0} of {len(row.seeds)}" for row in rows]))
    columns += [(name, [_cell(row.figures[name]) for row in rows]) for name in recipe.table.figures]
    if against:
        over = [_cell(row.over.measured) if row.over else "" for row in rows]
        columns.append((f"{first}\nover {against}", over))
    return columns


def _cell(figure: Measured) -> str:
    """`1.12` over `0.84 to 1.40`."""
    if figure.value is None:
        return "missing"
    return f"{figure.value:.2f}\n{figure.low:.2f} to {figure.high:.2f}"
