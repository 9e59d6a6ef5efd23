"""`sleuth train`: runs a recipe's stages in a run folder, in this process, under torchrun or on Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sleuth.cli.app import FAILED, exit_status
from sleuth.ranks import Ranks
from sleuth.terminal.options import NoCode, Overrides, Quiet, RecipeFile
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import Recipe

RESTARTS = 3
RAY_GPUS = {"auto": None, "cpu": False, "cuda": True}
"""Whether each rank needs a GPU, by the recipe's device."""
OTHER_RANK_DELAY = 5.0
"""Seconds. An error of one rank is often one of all: the other ranks wait so long for the first to print it."""


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, Option(metavar="DIR", help="The run folder; continued if it holds this run. [default: runs/NAME]")
    ] = None,
    roll_back: Annotated[
        bool,
        Option("--roll-back", help="Continue from the best checkpoint, with other random draws; --set may differ."),
    ] = False,
    accepted_reward: Annotated[
        str | None, Option("--accept-reward", metavar="HASH", help="Continue under this other reward.")
    ] = None,
    exact: Annotated[
        bool, Option("--exact", help="Continue only with the same libraries, processor and number of threads.")
    ] = False,
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Let Ray start the ranks: `local`, `auto` or a cluster's HOST:PORT.")
    ] = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
    world: Annotated[
        int | None, Option("--ranks", min=1, metavar="N", help="With --ray: how many processes train.")
    ] = None,
    restarts: Annotated[
        int | None, Option(min=0, metavar="N", help="With --ray: how often to restart ranks that ended. [default: 3]")
    ] = None,
) -> None:
    """Train a recipe, or continue the run folder that holds it.

    Under torchrun all processes train it.
    """
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder
    from sleuth.terminal.recipe_inputs import missing_inputs

    accepted: dict[str, Any] = {"accepted_reward": accepted_reward, "changed": roll_back}
    with _rank_0_first():
        resolved = load_recipe(recipe, overrides or (), missing_inputs)
        place = run or Path("runs") / resolved.name
        RunFolder.require_same(place, resolved, **accepted)

    import_heavy()
    from sleuth.cli.pipeline import require_accepted, require_inputs, run_recipe, stage_to_roll_back
    from sleuth.report.run_files import read_run
    from sleuth.report.summary import run_headline
    from sleuth.runs.progress import quiet as silence
    from sleuth.runs.run_folder import open_on

    if accepted_reward:
        require_accepted(resolved, accepted_reward)
    if roll_back:  # all checks come before the folder is changed
        require_inputs(resolved)
        stage_to_roll_back(resolved, RunFolder.look(place))
    if ray or world or restarts is not None:
        options: dict[str, Any] = {"exact": exact, "quiet": quiet}
        train_once = partial(train, recipe, overrides, place, accepted_reward=accepted_reward, **options)
        _train_on_ray(train_once, resolved, place, ray, world, restarts, accepted)
        return
    with silence(quiet), on_ranks() as ranks, open_on(ranks, place, resolved, **accepted) as folder:
        if roll_back:
            ranks.broadcast(lambda: folder.say(stage_to_roll_back(resolved, folder).roll_back()))
        last = run_recipe(resolved, folder, ranks, exact=exact)
        if not ranks.first:
            return
        if (line := run_headline(read_run(place))) is not None:
            typer.echo(line)
        typer.echo(f"{last}: the last checkpoint. Look at the run with `sleuth report {quote(str(place))}`.")


@contextmanager
def on_ranks() -> Iterator[Ranks]:
    """The ranks of a launcher, or a world of one. An error that all ranks share is printed by rank 0 alone; one of
    another rank names it."""
    from sleuth.training.group import join_ranks

    with _rank_0_first(), join_ranks() as ranks:
        yield ranks


@contextmanager
def _rank_0_first() -> Iterator[None]:
    """Raises errors of other ranks later, when a launcher has ended them if rank 0 failed too."""
    try:
        yield
    except SleuthError as error:
        rank = int(os.environ.get("RANK", "0"))
        if rank == 0:
            raise
        from sleuth.training.group import RAISED_BY_FIRST

        time.sleep(OTHER_RANK_DELAY)
        if RAISED_BY_FIRST in getattr(error, "__notes__", ()):
            raise typer.Exit(exit_status(error)) from None
        raise type(error)(*(f"rank {rank}: {problem}" for problem in error.args)) from None


def _train_on_ray(
    train_once: Callable[[], None],
    recipe: Recipe,
    run: Path,
    address: str | None,
    world: int | None,
    restarts: int | None,
    accepted: dict[str, Any],
) -> None:
    """Calls `train_once` on `world` ranks of the Ray at `address`, each of which trains in the folder `run`.

    All checks come before Ray is started. If the ranks end later, that is one line and exit status 1.
    """
    from sleuth.cli.pipeline import require_inputs, require_ranks, stage_to_roll_back
    from sleuth.runs.run_folder import FORWARDED_SIGNAL, LAUNCHER, RunFolder
    from sleuth.training.ray_ranks import RanksEndedError, RayCluster, require_ray, run_on_ray

    if address is None:
        raise SleuthError("--ranks and --restarts are for --ray; torchrun has --nproc-per-node and --max-restarts")
    if world is None:
        raise SleuthError("--ray: how many processes are to train? say it with --ranks N")
    if "WORLD_SIZE" in os.environ:
        raise SleuthError("--ray starts the ranks itself: give the command without torchrun, or unset WORLD_SIZE")
    require_ranks(recipe, Ranks(world=world))
    RunFolder.require(run, recipe, **accepted)
    require_inputs(recipe)
    require_ray(address)
    if accepted["changed"]:  # here, so that restarted ranks do not roll back again
        with RunFolder.open(run, recipe, **accepted) as folder:
            folder.say(stage_to_roll_back(recipe, folder).roll_back())
    cluster = RayCluster(
        address=address,
        ranks=world,
        restarts=RESTARTS if restarts is None else restarts,
        gpus=RAY_GPUS[recipe.device],
        notes=run / LAUNCHER,
        signal=run / FORWARDED_SIGNAL,
    )
    try:
        run_on_ray(train_once, cluster)
    except RanksEndedError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from None
