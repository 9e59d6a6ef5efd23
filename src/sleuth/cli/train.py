"""`sleuth train`: a recipe's stages, in a run folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.heavy import import_heavy


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value: stage.0.steps=50.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run folder; continued if it holds this run. Default: runs/NAME.")
    ] = None,
    back: Annotated[
        bool, typer.Option("--roll-back", help="Go on from the best checkpoint, with other draws; --set may differ.")
    ] = False,
    accepted_reward: Annotated[
        str | None, typer.Option("--accept-reward", metavar="HASH", help="Go on under this other reward.")
    ] = None,
    repository: Annotated[
        str | None, typer.Option("--push", metavar="OWNER/NAME", help="Upload the last checkpoint to the hub.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Continue only with the same number of threads and library versions.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Let Ray start the ranks: `local`, `auto` or a cluster's HOST:PORT."),
    ] = None,
    world: Annotated[
        int | None, typer.Option("--ranks", min=1, metavar="N", help="With --ray: how many processes train.")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="With --ray: how often ranks that ended are started again. Default: 3."),
    ] = None,
) -> None:
    """Train a recipe; continues a run folder that holds the same recipe. Under torchrun all processes train it."""
    from sleuth.plan.inputs import missing_inputs
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    resolved = load_recipe(recipe, overrides or (), missing_inputs)
    place = run or Path("runs") / resolved.name
    RunFolder.require_same(place, resolved, accepted_reward=accepted_reward, changed=back)

    import_heavy()
    from sleuth.cli.launched import on_ranks
    from sleuth.pipeline import require_accepted, require_inputs, run_recipe, stage_to_roll_back
    from sleuth.runs.joined_folder import open_on
    from sleuth.runs.push import push, require_push

    if accepted_reward:
        require_accepted(resolved, accepted_reward)
    if back:  # all that could be wrong, before the folder is touched
        require_inputs(resolved)
        stage_to_roll_back(resolved, RunFolder.look(place))
    if repository:
        require_inputs(resolved)
        require_push(repository)
    if ray or world or restarts is not None:
        from sleuth.cli.train_on_ray import train_on_ray

        again = partial(
            train, recipe, overrides, place, accepted_reward=accepted_reward, exact=exact, repository=repository
        )
        train_on_ray(again, resolved, place, ray, world, restarts, back=back, accepted_reward=accepted_reward)
        return
    with (
        on_ranks() as ranks,
        open_on(ranks, place, resolved, accepted_reward=accepted_reward, changed=back) as folder,
    ):
        if back:
            ranks.broadcast(lambda: folder.say(stage_to_roll_back(resolved, folder).roll_back()))
        last = run_recipe(resolved, folder, ranks, exact=exact)
        if repository and ranks.first:
            push(last, repository)
            folder.say(f"{last} is at {repository} on the hub, in a private repository if it is new")
        if ranks.first:
            typer.echo(f"{last}: the last checkpoint. Look at the run with `sleuth report {place}`.")
