"""Writes recipes as TOML, which the standard library can only read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sleuth.recipe.recipe import Recipe


def dump_toml(recipe: Recipe) -> str:
    """The recipe as TOML, defaults included. `load_recipe` of this text returns an equal recipe."""
    return emit_table(recipe.model_dump(exclude_none=True))


def emit_table(table: Mapping[str, Any]) -> str:
    """A TOML document of nested tables, lists of tables and plain values."""
    return "\n".join(_lines(table, "")).strip() + "\n"


def emit_value(value: Any) -> str:
    """A value in TOML syntax: `"text"`, `3`, `1e-05`, `true`, `[1, 2]`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(emit_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {emit_value(item)}" for name, item in value.items()) + "}"
    return repr(value) if isinstance(value, int | float) else str(value)


def _lines(table: Mapping[str, Any], above: str) -> Iterator[str]:
    """Lines of a table: `kind` and `name`, then other plain values, then inner tables, whose headers end the table."""
    inner = {}
    for name, value in sorted(table.items(), key=lambda item: item[0] not in ("kind", "name")):
        if isinstance(value, Mapping) or _is_list_of_tables(value):
            inner[name] = value
        else:
            yield f"{_key(name)} = {emit_value(value)}"
    for name, value in inner.items():
        header = f"{above}{_key(name)}"
        bracketed = f"[[{header}]]" if _is_list_of_tables(value) else f"[{header}]"
        for item in value if _is_list_of_tables(value) else (value,):
            yield ""
            yield bracketed
            yield from _lines(item, f"{header}.")


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else emit_value(name)
