"""`sleuth train --ray`: Ray starts the ranks, and each is `sleuth train`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import Recipe

RESTARTS = 3
GPUS = {"auto": None, "cpu": False, "cuda": True}
"""Whether ranks need one, by the recipe's device."""


def train_on_ray(
    work: Callable[[], None],
    recipe: Recipe,
    run: Path,
    address: str | None,
    world: int | None,
    restarts: int | None,
    *,
    back: bool,
    accepted_reward: str | None,
) -> None:
    """Do `work`, which trains the recipe in the folder `run`, on `world` ranks of the Ray at `address`.

    All that can be known to be wrong is told before Ray is asked for anything. What ended the ranks later is a line,
    and exit status 1.
    """
    from sleuth.distributed.ray_ranks import RanksEndedError, RayCluster, require_ray, run_on_ray
    from sleuth.pipeline import require_inputs, require_ranks, stage_to_roll_back
    from sleuth.ranks import Ranks
    from sleuth.runs.run_folder import LAUNCHER, RunFolder

    if address is None:
        raise SleuthError("--ranks and --restarts are for --ray; torchrun has --nproc-per-node and --max-restarts")
    if world is None:
        raise SleuthError("--ray: how many processes are to train? say it with --ranks N")
    if "WORLD_SIZE" in os.environ:
        raise SleuthError("--ray starts the ranks itself: give the command without torchrun, or unset WORLD_SIZE")
    require_ranks(recipe, Ranks(world=world))
    RunFolder.require(run, recipe, accepted_reward=accepted_reward, changed=back)
    require_inputs(recipe)
    require_ray(address)
    if back:  # once, and not again where ranks are started again
        with RunFolder.open(run, recipe, accepted_reward=accepted_reward, changed=True) as folder:
            folder.say(stage_to_roll_back(recipe, folder).roll_back())
    place = RayCluster(
        address=address,
        ranks=world,
        restarts=RESTARTS if restarts is None else restarts,
        gpus=GPUS[recipe.device],
        notes=run / LAUNCHER,
    )
    try:
        run_on_ray(work, place)
    except RanksEndedError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
