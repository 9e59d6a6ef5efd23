"""Reads the recipes that Sleuth ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sleuth.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def contents_of(recipe: str, *overrides: str) -> dict[str, Any]:
    """The contents of a recipe, such as `tiny/thinking`, without its name and its `resolved_from`."""
    return load_recipe(RECIPES / f"{recipe}.toml", overrides).model_dump(exclude={"name", "resolved_from"})


def value_at(table: Any, key: str) -> Any:
    """The value at a dotted key: `value_at(stage, "reward.0.kind")`."""
    for part in key.split("."):
        table = table[int(part)] if part.isdigit() else table[part]
    return table
