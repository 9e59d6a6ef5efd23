"""`sleuth replay`: a recorded step again, and what a change would have made of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.threads import PROCESS
from sleuth.types import SleuthError


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Argument(min=1, help="A step that its metrics hold.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another reward or loss: stage.1.loss.clip_high=0.2."),
    ] = None,
    layout: Annotated[Literal["tree", "padded"], typer.Option(help="Each token once, or each row by itself.")] = "tree",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute one recorded step again from its rollouts, as it was and under another reward, loss or layout.

    The weights before it are rebuilt from the nearest checkpoint and the rollouts since. Nothing is written.
    """
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    folder = RunFolder.look(run)
    PROCESS.begin(folder.manifest.threads)
    changed = load_recipe(run / "recipe.toml", overrides or ())

    import_heavy()
    from sleuth.cli.watching import watched
    from sleuth.pipeline import trained_stages
    from sleuth.recipe.grpo import GrpoRecipe
    from sleuth.training.replay import replay as replayed

    for stage in trained_stages(folder.recipe, folder):
        recipe = changed.stage[stage.index]
        if isinstance(recipe, GrpoRecipe) and stage.first_step < step <= stage.first_step + recipe.steps:
            with watched("replay") as progress:
                found = replayed(stage, step, recipe, padded=layout == "padded", progress=progress)
            break
    else:
        raise SleuthError(f"{run}: step {step} is of no stage that plays episodes, so there are no rollouts of it")
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
        return
    between = found.step - found.restored_at - 1
    typer.echo(f"step {found.step}, with the weights of step {found.restored_at} and {between} updates made again")
    typer.echo(f"loss as recorded     {_shown(found.recorded_loss)}")
    typer.echo(f"loss, computed again {_shown(found.loss)}")
    typer.echo(f"loss after changes   {_shown(found.changed_loss)}")
    typer.echo(f"cosine of gradients  {_shown(found.cosine)}  (as it was, and after the changes)")
    typer.echo(f"scores changed       {found.scores_changed} of {found.episodes}")


def _shown(value: float | None) -> str:
    return "nothing is taught" if value is None else f"{value:.9g}"
