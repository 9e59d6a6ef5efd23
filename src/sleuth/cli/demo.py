"""`sleuth demo`: trains a tiny model to search, from files that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import Quiet


def demo(
    run: Annotated[Path, typer.Option(metavar="DIR", help="The run folder.")] = Path("runs/demo"),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a tiny model to search, in about ten minutes.

    Two cores are enough and no network is needed. Writes a generated world to runs/world, indexes it, trains the
    recipe that ships as recipes/demo.toml, and writes DIR/report.html. The same command continues after a stop.
    """
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import WORLD, shipped

    load_recipe(shipped("recipes/demo.toml"), overrides or ())  # a wrong --set ends it here

    from sleuth.cli.progress import progress_bar, row_counter
    from sleuth.cli.train import train
    from sleuth.report import write_report
    from sleuth.retrieval.bm25 import build_index
    from sleuth.runs.checkpoints import latest_checkpoint
    from sleuth.runs.progress import quiet as silence
    from sleuth.world.write_world import CORPUS, write_world

    with silence(quiet):
        with progress_bar("world") as progress:
            write_world(WORLD, seed=0, people=2000, progress=progress)
        build_index(WORLD / CORPUS, WORLD / "index", row_counter("index"))
        train(shipped("recipes/demo.toml"), overrides, run)
    page, last = write_report(run), latest_checkpoint(run / "checkpoints")
    typer.echo(f"\nThe report:    {page}")
    typer.echo(f"Talk to it:    sleuth serve {last} --index {WORLD / 'index'}")
    typer.echo(f"Ask it more:   sleuth eval {last} --questions {WORLD / 'qa_test.jsonl'} --index {WORLD / 'index'}")
    typer.echo(f'Look it up:    sleuth search {WORLD / "index"} "Who founded ..."')
