"""`sleuth demo`: a tiny model learns to search, from files that the package brings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WORLD = Path("runs/world")
"""Where the recipe looks for it."""


def demo(
    run: Annotated[Path, typer.Option(metavar="DIR", help="The run folder.")] = Path("runs/demo"),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
) -> None:
    """Teach a tiny model to search, in some ten minutes on two cores and without a network.

    Writes a generated world to runs/world, indexes it, trains the recipe that ships as recipes/demo.toml, and writes
    DIR/report.html. The same command goes on after it was stopped.
    """
    from sleuth.cli.train import train
    from sleuth.cli.watching import counted, watched
    from sleuth.recipe import load_recipe
    from sleuth.report import write_report
    from sleuth.retrieval.bm25 import build_index
    from sleuth.runs.checkpoints import latest_checkpoint
    from sleuth.world.write_world import CORPUS, write_world

    recipe = shipped("recipes/demo.toml")
    model = load_recipe(recipe).model
    begun = [] if Path(model).is_dir() else [f"model={shipped(model)}"]
    with watched("world") as progress:
        write_world(WORLD, seed=0, people=2000, progress=progress)
    build_index(WORLD / CORPUS, WORLD / "index", counted("index"))
    train(recipe, [*begun, *(overrides or ())], run)
    page, last = write_report(run), latest_checkpoint(run / "checkpoints")
    typer.echo(f"\nThe report:    {page}")
    typer.echo(f"Talk to it:    sleuth serve {last} --index {WORLD / 'index'}")
    typer.echo(f"Ask it more:   sleuth eval {last} --questions {WORLD / 'qa_test.jsonl'} --index {WORLD / 'index'}")
    typer.echo(f'Look it up:    sleuth search {WORLD / "index"} "Who founded ..."')


def shipped(name: str) -> Path:
    """A file or folder of the checkout that the wheel brings too: `shipped("recipes/demo.toml")`."""
    package = Path(__file__).parents[1]
    wheel = package / "shipped" / name
    return wheel if wheel.exists() else package.parents[1] / name
