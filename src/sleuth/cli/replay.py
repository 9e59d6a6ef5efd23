"""`sleuth replay`: computes a recorded step again, as it was and under a change."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.options import AllowCode, AsJson
from sleuth.types import SleuthError


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Argument(min=1, help="A step in its metrics.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another reward or loss: grpo.loss.clip_high=0.2."),
    ] = None,
    layout: Annotated[
        Literal["tree", "padded"], typer.Option(help="Compute shared prefixes once, or each row by itself.")
    ] = "tree",
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Compute a recorded step again under another reward or loss.

    Its rollouts are read, and the weights before it are rebuilt from the nearest checkpoint and the rollouts since.
    --layout changes how rows are laid out. Nothing is written. A reward or a loss of your own is imported only with
    --allow-code.
    """
    from sleuth.recipe import load_recipe
    from sleuth.runs.run_folder import RunFolder

    folder = RunFolder.look(run)
    PROCESS.begin(folder.manifest.threads)
    changed = load_recipe(run / "recipe.toml", overrides or ())

    import_heavy()
    from sleuth.cli.pipeline import trained_stages
    from sleuth.recipe.grpo import GrpoRecipe
    from sleuth.terminal.progress import progress_bar
    from sleuth.training.replay import replay as replay_step

    for stage in trained_stages(folder.recipe, folder):
        recipe = changed.stages_of(GrpoRecipe).get(stage.index)
        if recipe is not None and stage.first_step < step <= stage.first_step + recipe.steps:
            with progress_bar("replay") as progress:
                found = replay_step(stage, step, recipe, padded=layout == "padded", progress=progress)
            PROCESS.announce()
            break
    else:
        raise SleuthError(f"{run}: step {step} belongs to no GRPO stage, so it has no rollouts")
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
    return "no trained tokens" if value is None else f"{value:.9g}"
