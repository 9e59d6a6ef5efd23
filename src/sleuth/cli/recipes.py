"""`sleuth recipes`: lists the recipes that ship, or prints one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.terminal.options import AsJson
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe.shipped import ShippedRecipe


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print this recipe instead of the list.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that ship, with their cards and sources.

    `sleuth train NAME`, `sleuth check recipe NAME` and `sleuth plan NAME` find them from any folder.
    """
    from sleuth.recipe.load import list_recipes
    from sleuth.recipe.shipped import hint_for, recipe_names, recipe_text

    if name is None:
        found = list_recipes()
        if as_json:
            typer.echo(json.dumps({"recipes": [_row(recipe) for recipe in found]}))
        else:
            print_recipes(found)
        return
    if name not in recipe_names():
        raise SleuthError(f"{name}: no such recipe{hint_for(Path(name))}")
    if as_json:
        typer.echo(json.dumps(next(_row(recipe) for recipe in list_recipes() if recipe.name == name)))
    else:
        typer.echo(recipe_text(name), nl=False)


def _row(recipe: ShippedRecipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "file": str(recipe.file),
        "card": recipe.card,
        "about": recipe.about,
        "sweep": recipe.is_sweep,
    }


def print_recipes(found: list[ShippedRecipe]) -> None:
    """Prints each recipe's name and card, and under them the first sentence of its comment, which names its source."""
    from sleuth.runs.progress import Console

    console = Console()
    columns, width = console.width, max(len(recipe.name) for recipe in found)
    for recipe in found:
        console.print(f"{recipe.name:<{width}}  {recipe.card}", style="bold", soft_wrap=True)
        typer.echo(fill(_first_sentence(recipe.about), columns, initial_indent="  ", subsequent_indent="  "))
    typer.echo("\nPrint one whole: sleuth recipes NAME. Train it: sleuth train NAME.")


def _first_sentence(text: str) -> str:
    """The text up to the full stop or question mark that ends its first sentence."""
    return re.split(r"(?<=[.?]) (?=[A-Z])", text, maxsplit=1)[0]
