"""Writes recipes and single values as TOML, which the standard library can only read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from sleuth.recipe.recipe import Recipe


def dump_toml(recipe: Recipe) -> str:
    """The recipe as TOML, defaults included. `load_recipe` of this text returns an equal recipe."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def emit_value(value: Any) -> str:
    """A value in TOML syntax, in one line for messages: `"text"`, `3`, `1e-05`, `true`, `[1, 2]`. tomli_w breaks
    lists into lines."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(emit_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {emit_value(item)}" for name, item in value.items()) + "}"
    return str(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else emit_value(name)
