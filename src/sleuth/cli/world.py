"""`sleuth world`: writes the generated world as files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sleuth.terminal.options import AsJson


def world(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; an existing world is replaced.")],
    seed: Annotated[int, typer.Option(help="The same seed and size give the same bytes.")] = 0,
    people: Annotated[int, typer.Option(help="Number of people in it: 200 to 200000.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Generate a small world to search: corpus, questions, texts.

    DIR gets corpus.jsonl, qa_train.jsonl, qa_test.jsonl, refiner_train.jsonl, refiner_test.jsonl (tool outputs to
    refine), text_train.jsonl, text_test.jsonl (texts whose ending follows from their beginning, with the thought that
    derives it), careless_train.jsonl, careless_test.jsonl (texts of which half end wrong), hasty_train.jsonl (texts of
    which half contain a right thought), arithmetic_test.jsonl (sums in the layout of MATH-500) and world.json, which
    describes them and says how well the endings can be predicted.
    """
    from sleuth.terminal.progress import progress_bar
    from sleuth.world.write_world import CORPUS, write_world

    with progress_bar("world") as progress:
        card = write_world(folder, seed, people, progress)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **asdict(card)}))
        return
    for name, count in card.rows.items():
        typer.echo(f"{folder / name}: {count:,} rows")
    typer.echo(f"Next: sleuth index {quote(str(folder / CORPUS))} {quote(str(folder / 'index'))}")
