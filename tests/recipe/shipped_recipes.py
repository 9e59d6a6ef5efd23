"""Reads the recipes that Sleuth ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sleuth.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def contents_of(recipe: str, *overrides: str) -> dict[str, Any]:
    """The contents of a recipe, such as `tiny/thinking`, without its name and its `resolved_from`."""
    return load_recipe(RECIPES / f"{recipe}.toml", overrides).model_dump(exclude={"name", "resolved_from"})


def differing(found: Any, expected: Any, at: str = "") -> list[str]:
    """The keys of `expected`, and only those, that have other values in what a recipe holds."""
    if isinstance(expected, dict):
        return [key for name, value in expected.items() for key in differing(found[name], value, f"{at}.{name}")]
    if isinstance(expected, list) and isinstance(expected[0], dict):
        return [key for n, value in enumerate(expected) for key in differing(found[n], value, f"{at}.{n}")]
    right = Path(expected) if isinstance(found, Path) else tuple(expected) if isinstance(expected, list) else expected
    return [] if found == right else [f"{at} = {found!r}, expected {right!r}"]
