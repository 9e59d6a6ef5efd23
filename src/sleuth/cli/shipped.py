"""`sleuth recipes`, `sleuth prompts` and `sleuth world`: the recipes and prompts that ship, and the generated world."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.terminal.options import AsJson, recipe_completions
from sleuth.terminal.tables import show
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.episodes.library import ListedPrompt
    from sleuth.recipe.shipped import ShippedRecipe

FIRST_LINE = 33
"""Characters of a prompt's first line to show, so that a row has 80."""


def recipes(
    name: Annotated[
        str | None,
        Argument(
            metavar="NAME",
            help="Print this recipe instead of the list.",
            show_default=False,
            autocompletion=recipe_completions,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that ship, with their cards and sources.

    `sleuth train NAME`, `sleuth check recipe NAME` and `sleuth plan NAME` find them from any folder.
    """
    from sleuth.recipe.load import list_recipes
    from sleuth.recipe.shipped import hint_for, recipe_names, recipe_text

    if name is not None and name not in recipe_names():
        raise SleuthError(f"{name}: no such recipe{hint_for(Path(name))}")
    if name is not None and not as_json:
        typer.echo(recipe_text(name), nl=False)
        return
    listed = list_recipes()
    if not as_json:
        print_recipes(listed)
        return
    keys = ("name", "file", "card", "about")
    rows = {one.name: {key: str(getattr(one, key)) for key in keys} | {"sweep": one.is_sweep} for one in listed}
    show(as_json, {"recipes": list(rows.values())} if name is None else rows[name])


def print_recipes(listed: list[ShippedRecipe]) -> None:
    """Prints each recipe's name and card, and under them the first sentence of its comment, which names its source."""
    from sleuth.runs.progress import Console

    console = Console()
    columns, width = console.width, max(len(recipe.name) for recipe in listed)
    for recipe in listed:
        console.print(f"{recipe.name:<{width}}  {recipe.card}", style="bold", soft_wrap=True)
        about = re.split(r"(?<=[.?]) (?=[A-Z])", recipe.about, maxsplit=1)[0]
        typer.echo(fill(about, columns, initial_indent="  ", subsequent_indent="  "))
    typer.echo("\nPrint one whole: sleuth recipes NAME. Train it: sleuth train NAME.")


prompts = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@prompts.callback()
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List or import the prompts that a recipe can name.

    Ours come with Sleuth; of a published one, the user brings the text.
    """
    from sleuth.episodes.library import list_prompts

    if context.invoked_subcommand is not None:
        return
    listed = list_prompts()
    if as_json:
        show(as_json, {"prompts": [_row(prompt) for prompt in listed]})
    else:
        _print_table(listed)


@prompts.command("import")
def import_(
    name: Annotated[str, Argument(metavar="NAME", help="A published prompt, as `sleuth prompts` lists it.")],
    file: Annotated[
        Path, Argument(metavar="FILE", help="The file that contains it: a text, a Python source or a .parquet of rows.")
    ],
    as_json: AsJson = False,
) -> None:
    """Import a published prompt from a file that you have.

    Its sha256 must be the known one.
    """
    from sleuth.episodes.library import PUBLISHED, import_prompt, stored_file

    text = import_prompt(name, file)
    prompt = PUBLISHED[name]
    stored = stored_file(prompt)
    record = {"name": name, "file": str(stored), "sha256": prompt.sha256, "role": prompt.role, "found": str(file)}
    key = f'hint = "{name}"' if prompt.role == "hint" else f'prompt = "{name}", prompt_role = "{prompt.role}"'
    size = f"{len(text.encode())} bytes, sha256 {prompt.sha256[:12]}"
    show(as_json, record, f"{stored}: {size}", f"In a recipe: env = {{ {key}, ... }}")


def _row(prompt: ListedPrompt) -> dict[str, Any]:
    from sleuth.episodes.library import sha256_of

    published, text = prompt.published, prompt.text
    return {
        "name": prompt.name,
        "origin": "published" if published else "ours",
        "role": published.role if published else None,
        "there": text is not None,
        "bytes": None if text is None else len(text.encode()),
        "sha256": published.sha256 if published else sha256_of((text or "").encode()),
        "source": published.source if published else None,
        "ours": published.ours if published else None,
    }


def _print_table(listed: list[ListedPrompt]) -> None:
    """Prints the names, where their texts are, and how to get the missing ones."""
    for prompt in listed:
        row = _row(prompt)
        size = f"{row['bytes']:>5,} bytes" if row["there"] else "not imported"
        first = (prompt.text or "").strip().split("\n")[0]
        kind = f"published, {row['role']}" if prompt.published else shorten(first, FIRST_LINE, placeholder=" ...")
        typer.echo(f"{prompt.name:<18} {size:>12}  {row['sha256'][:12]}  {kind}")
    missing = [prompt.published for prompt in listed if prompt.published is not None and prompt.text is None]
    for published in missing:
        alternative = f" (our own words for it: {published.ours})" if published.ours else ""
        typer.echo(f"\n{published.name}: published as {published.source}{alternative}")
    if missing:
        typer.echo("\nGet the file and run: sleuth prompts import NAME FILE")


def world(
    folder: Annotated[Path, Argument(metavar="DIR", help="The folder to write; an existing world is replaced.")],
    seed: Annotated[int, Option(help="The same seed and size give the same bytes.")] = 0,
    people: Annotated[int, Option(help="Number of people in it: 200 to 200000.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Generate a small world to search: corpus, questions, texts.

    DIR gets corpus.jsonl, qa_train.jsonl, qa_test.jsonl, refiner_train.jsonl, refiner_test.jsonl (tool outputs to
    refine), text_train.jsonl, text_test.jsonl (texts whose ending follows from their beginning, with the thought that
    derives it), careless_train.jsonl, careless_test.jsonl (texts of which half end wrong), hasty_train.jsonl (texts of
    which half contain a right thought), arithmetic_test.jsonl (sums in the layout of MATH-500) and world.json, which
    describes them and says how well the endings can be predicted.
    """
    from sleuth.runs.progress import progress_bar
    from sleuth.world.write_world import CORPUS, write_world

    with progress_bar("world") as progress:
        card = write_world(folder, seed, people, progress)
    show(
        as_json,
        {"folder": str(folder), **asdict(card)},
        *(f"{folder / name}: {count:,} rows" for name, count in card.rows.items()),
        f"Next: sleuth index {quote(str(folder / CORPUS))} {quote(str(folder / 'index'))}",
    )
