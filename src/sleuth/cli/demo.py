"""`sleuth demo`: trains a tiny model to search, or shows one that answers real questions, from files that ship with the
package."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sleuth.terminal.inputs import require_unset
from sleuth.terminal.options import Quiet

RUN = Path("runs/demo")


def demo(
    run: Annotated[Path | None, typer.Option(metavar="DIR", help=f"The run folder. [default: {RUN}]")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
    quiet: Quiet = False,
    real: Annotated[bool, typer.Option("--real", help="Train nothing: ask the tiny model of real questions.")] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="With --real: of the page. [default: 8000, or the next free one]"),
    ] = None,
    ask: Annotated[
        str | None, typer.Option(metavar="QUESTION", help="With --real: answer this question here, without the page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --ask: print one JSON object.")] = False,
) -> None:
    """Train a tiny model to search, in about five minutes.

    Two cores are enough, and no network is needed. Writes a generated world to runs/world, indexes it, trains the
    recipe that ships as recipes/demo.toml, and writes DIR/report.html. The same command continues after a stop.

    With --real it trains nothing: a page, on this machine alone, asks a model of 4.6 million weights that answers real
    questions from passages of Wikipedia, and cites one of them. Their index is written to runs/real-index.
    """
    if real:
        require_unset({"--run": run, "--set": overrides or None}, "is for training, and --real trains nothing")
        if ask is None:
            require_unset({"--json": as_json or None}, "prints an answer; add --ask QUESTION")
        else:
            require_unset({"--port": port}, "is for the page, and --ask answers here")

        from sleuth.cli.real_demo import answer_here, serve_page

        if ask is None:
            serve_page(port, quiet=quiet)
        else:
            answer_here(ask, as_json=as_json, quiet=quiet)
        return
    require_unset({"--port": port, "--ask": ask, "--json": as_json or None}, "is for the real questions; add --real")
    _train(RUN if run is None else run, overrides, quiet)


def _train(run: Path, overrides: list[str] | None, quiet: bool) -> None:
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import WORLD, shipped

    load_recipe(shipped("recipes/demo.toml"), overrides or ())  # a wrong --set ends it here

    from sleuth.cli.train import train
    from sleuth.report import write_report
    from sleuth.retrieval.bm25 import build_index
    from sleuth.runs.checkpoints import latest_checkpoint
    from sleuth.runs.progress import quiet as silence
    from sleuth.terminal.progress import progress_bar, row_counter
    from sleuth.world.write_world import CORPUS, write_world

    with silence(quiet):
        with progress_bar("world") as progress:
            write_world(WORLD, seed=0, people=2000, progress=progress)
        build_index(WORLD / CORPUS, WORLD / "index", row_counter("index"))
        train(shipped("recipes/demo.toml"), overrides, run)
    page, last = write_report(run), latest_checkpoint(run / "checkpoints")
    typer.echo(f"\nThe report:    {page}")
    typer.echo(f"Talk to it:    sleuth serve {quote(str(last))} --index {WORLD / 'index'}")
    typer.echo(
        f"Ask it more:   sleuth eval {quote(str(last))} --questions {WORLD / 'qa_test.jsonl'} --index {WORLD / 'index'}"
    )
    typer.echo(f'Look it up:    sleuth search {WORLD / "index"} "Who founded ..."')
