"""What the recipes that we carry say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sleuth.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def told(recipe: str, *overrides: str) -> dict[str, Any]:
    """All that a recipe says, such as `tiny/thinking`, but for its own name and place."""
    return load_recipe(RECIPES / f"{recipe}.toml", overrides).model_dump(exclude={"name", "resolved_from"})


def value_at(table: Any, key: str) -> Any:
    """`value_at(stage, "reward.0.kind")`."""
    for part in key.split("."):
        table = table[int(part)] if part.isdigit() else table[part]
    return table
