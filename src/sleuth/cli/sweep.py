"""`sleuth sweep`: trains several runs that differ by a stage or two, and prints their table."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.cli.app import FAILED, PAUSED
from sleuth.terminal.options import AsJson, NoCode, Overrides, Quiet
from sleuth.terminal.tables import Column, print_columns, show, table_cell
from sleuth.types import RetrievalFailed, SleuthError, StoppedByRule

if TYPE_CHECKING:
    from sleuth.ranks import Ranks
    from sleuth.recipe import Recipe
    from sleuth.recipe.sweep import SweepRecipe
    from sleuth.report.arm_table import ArmRow

LEGEND = (
    "Intervals are of 95 %, over texts and, where there are several, over seeds; tokens are those that the losses "
    "trained on since the base, a mean over seeds."
)


def sweep(
    recipe: Annotated[Path, Argument(metavar="FILE", help="A TOML file with [[arm]] tables.", show_default=False)],
    overrides: Overrides = None,
    run: Annotated[
        Path | None, Option(metavar="DIR", help="Holds one run folder per arm and seed. [default: runs/NAME]")
    ] = None,
    only: Annotated[
        list[str] | None, Option("--arm", metavar="NAME", help="Train this arm; more than once for several.")
    ] = None,
    seeds: Annotated[
        list[int] | None, Option("--seed", metavar="N", help="Train with this seed; more than once for several.")
    ] = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train runs that differ by a stage or two, in one table.

    Each arm is a run folder, the same that `sleuth train` would write. Stages that several arms share are trained once,
    and finished runs are not trained again. If an arm fails or misses its gate, the others go on, and the exit status
    is 1, or 3 where no arm failed.
    """
    from sleuth.recipe.sweep import load_sweep
    from sleuth.terminal.recipe_inputs import missing_inputs

    resolved, runs = load_sweep(recipe, overrides or (), missing_inputs, only or ())
    root = run or Path("runs") / resolved.name
    for name in only or ():
        if name not in runs:
            raise SleuthError(f"--arm {name}: no such arm; there are {', '.join(runs)}")
    for seed in seeds or ():
        if seed not in resolved.seeds:
            raise SleuthError(f"--seed {seed}: the seeds of {recipe} are {', '.join(map(str, resolved.seeds))}")
    chosen = {name: runs[name] for name in only or runs}

    from sleuth.cli.check import require_sweep_inputs
    from sleuth.cli.train import on_ranks
    from sleuth.report.arm_table import arm_folder, arm_table
    from sleuth.runs.progress import quiet as silence
    from sleuth.runs.run_folder import RunFolder

    pairs = product(seeds or resolved.seeds, chosen.items())
    arms = [(seed, name, arm.model_copy(update={"seed": seed})) for seed, (name, arm) in pairs]
    for seed, name, arm in arms:  # a folder of another run, before the first arm trains and not between two
        RunFolder.require_same(arm_folder(root, seed, name), arm)
    require_sweep_inputs(recipe, chosen)
    stopped: list[str] = []
    failed: list[str] = []
    with silence(quiet), on_ranks() as ranks:
        for seed, name, arm in arms:
            try:
                _train(arm, ranks, [arm_folder(root, seed, other) for other in (name, *runs)])
            except StoppedByRule as error:  # the other arms go on, as they do after a failure
                stopped.append(str(error))
            except Exception as error:
                if not ranks.alone:  # whether all ranks go on cannot be known
                    raise
                if not isinstance(error, SleuthError | RetrievalFailed | OSError):  # a bug, or a card without memory
                    traceback.print_exc()
                failed.append(f"error: arm {name}, seed {seed}: {error}")
        if not ranks.first:
            return
    rows = arm_table(resolved, root)
    if as_json:
        table = {"evaluation": resolved.table.evaluation, "against": resolved.table.against}
        show(as_json, table | {"arms": {row.name: row.as_json() for row in rows}})
    else:
        _print(resolved, rows)
    for line in (*stopped, *failed):
        typer.echo(line, err=True)
    if stopped or failed:
        raise typer.Exit(FAILED if failed else PAUSED)


def _train(recipe: Recipe, ranks: Ranks, places: Sequence[Path]) -> None:
    """Trains an arm in the first of the `places`; it reuses checkpoints of the other ones."""
    from sleuth.cli.pipeline import run_recipe
    from sleuth.runs.checkpoints import reuse_checkpoints
    from sleuth.runs.run_folder import open_on

    with open_on(ranks, places[0], recipe) as folder:
        folder.say(f"arm {recipe.name}, seed {recipe.seed}")
        ranks.broadcast(lambda: reuse_checkpoints(folder, places[1:]))
        run_recipe(recipe, folder, ranks)


def _print(recipe: SweepRecipe, rows: Sequence[ArmRow]) -> None:
    """Prints the table and what belongs to it; a line where no arm has a row."""
    if not rows:
        typer.echo(f"No arm of {recipe.name} is measured yet, so there is no table.")
        return
    columns = [Column(heading=heading, cells=cells) for heading, cells in _columns(recipe, rows).items()]
    print_columns([row.name for row in rows], columns, heading="arm")
    typer.echo(f"{recipe.table.evaluation} of {recipe.name}. {LEGEND}")
    for row in rows:
        for seed, steps in row.shorter.items():
            typer.echo(f"{row.name}: seed {seed} was trained for {steps:,} steps, fewer than others: not in its row.")
    lacking = [arm.name for arm in recipe.arm if arm.name not in {row.name for row in rows}]
    if lacking:
        typer.echo(f"Not measured yet: {', '.join(lacking)}.")


def _columns(recipe: SweepRecipe, rows: Sequence[ArmRow]) -> dict[str, list[str]]:
    """The cells below each heading."""
    columns = {"seeds": [f"{len(row.seeds)}" for row in rows], "tokens": [f"{row.tokens_trained:,.0f}" for row in rows]}
    if any(row.certified is not None for row in rows):
        columns["certified"] = [f"{row.certified or 0} of {len(row.seeds)}" for row in rows]
    if any(row.stopped for row in rows):
        columns["stopped\nat a gate"] = [f"{len(row.stopped)} of {len({*row.seeds, *row.stopped})}" for row in rows]
    for name in recipe.table.figures:
        columns[name.replace(":", "\n")] = [table_cell(row.figures.get(name), 2) for row in rows]
    if recipe.table.against:
        heading = f"{recipe.table.figures[0].rpartition(':')[2]}\nover {recipe.table.against}"
        columns[heading] = [table_cell(row.over and row.over.measured, 2) for row in rows]
    return columns
