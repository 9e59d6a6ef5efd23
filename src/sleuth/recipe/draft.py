"""A recipe as plain tables: `Draft`, which knows the file or override that each key is from, and TOML in and out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from sleuth.recipe.shipped import hint_for
from sleuth.recipe.strict import StrictModel
from sleuth.types import SleuthError

Key = tuple[str | int, ...]
"""The path of a value: `("stage", 0, "steps")`, written `stage.0.steps`."""
MAX_BYTES, MAX_PARTS = 2**20, 64
"""Of a recipe, and the parts of a key: tomllib takes memory for the square of them."""
LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]+\s*\.\s*){{{MAX_PARTS}}}""")


def dotted(key: Sequence[str | int]) -> str:
    """A key as text: `stage.0.steps`."""
    return ".".join(str(part) for part in key)


def leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (key, value) for each value of nested tables. An array is one value, and so are an empty table and one by
    steps."""
    for name, value in table.items():
        if isinstance(value, dict) and value and not by_steps(value):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def by_steps(value: Any) -> bool:
    """Whether this is a table of numbers by steps, such as `{ 0 = 0.1, 100 = 0.02 }`, which replaces another whole."""
    return isinstance(value, dict) and bool(value) and all(name.isdecimal() for name in value)


class Draft:
    """The merged layers of a recipe. `problems` has a line for each key that could not be set; `copied` has keys whose
    values are copies, of which nothing is reported twice."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table: dict[str, Any] = {}
        self.problems: list[str] = []
        self.copied: list[Key] = []
        self._writers: dict[Key, str] = {}

    def merge(self, table: Mapping[str, Any], writer: str) -> None:
        """Merges the tables of a file into the draft: tables merge; a list, an empty table or a value replaces."""
        for key, value in leaves(table):
            self.set(key, value, writer)

    def set(self, key: Sequence[str], value: Any, writer: str) -> None:
        """Sets one value. Numbers index lists and may be negative; missing tables are created."""
        try:
            self._write(key, value, writer)
        except SleuthError as error:  # raised with all other problems
            self.problems.append(str(error))

    def get(self, key: Sequence[str]) -> Any:
        """The value at a key; None where there is none."""
        node: Any = self.table
        try:
            for part in key:
                node = node[self._step(node, (), part, "")]
        except (SleuthError, KeyError):
            return None
        return node

    def _write(self, key: Sequence[str], value: Any, writer: str) -> None:
        node: Any = self.table
        at: Key = ()
        for part in key[:-1]:
            step = self._step(node, at, part, writer)
            at = (*at, step)
            if isinstance(node, dict) and step not in node:
                node[step] = {}
                self._writers[at] = writer
            node = node[step]
        last: Any = self._step(node, at, key[-1], writer)
        at = (*at, last)
        self._forget(at, node.get(last) if isinstance(node, dict) else node[last])
        node[last] = value
        self._writers[at] = writer

    def _forget(self, key: Key, value: Any) -> None:
        """Forgets who wrote a value that is about to be replaced, and those in it."""
        self._writers.pop(key, None)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, part in inner:
            self._forget((*key, name), part)

    def writer_of(self, key: Key) -> str:
        """The file or override that last set this key or a table around it, for error messages."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._writers:
                return self._writers[key[:length]]
        return self.path

    def _step(self, node: Any, at: Key, part: str, writer: str) -> str | int:
        if isinstance(node, dict):
            return part
        if not isinstance(node, list):
            raise SleuthError(f"{writer}: {dotted((*at, part))}: {dotted(at)} is a value, not a table")
        if not re.fullmatch(r"-?\d+", part):
            raise SleuthError(f"{writer}: {dotted((*at, part))}: {dotted(at)} is a list; write {dotted(at)}.0.{part}")
        index = int(part)
        if not -len(node) <= index < len(node):
            raise SleuthError(f"{writer}: {dotted((*at, part))}: {dotted(at)} has {len(node)} entries, counted from 0")
        return index % len(node)


# -- TOML --------------------------------------------------------------------------------------------------------------


def read_toml(path: Path, child: Path | None = None) -> dict[str, Any]:
    """The tables of a file, which `child` extends. Raises a one-line `SleuthError` where it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            is_run = f"the folder of a run, whose recipe is {path / 'recipe.toml'}"
            what = is_run if (path / "recipe.toml").is_file() else "not an ordinary file; a recipe is a TOML file"
            raise SleuthError(f"{path}: is {what}")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SleuthError(f"{path}: larger than {MAX_BYTES:,} bytes; a recipe has some thousands")
        text = content.decode()
        if key := LONG_KEY.search(text):
            raise SleuthError(f"{path}:{text.count(chr(10), 0, key.start()) + 1}: a key of more than {MAX_PARTS} parts")
        return tomllib.loads(text)
    except FileNotFoundError:
        where = (
            f"{path}: no such recipe{hint_for(path)}"
            if child is None
            else f"{child}: extends a file that is not there: {path}"
        )
        raise SleuthError(where) from None
    except OSError as error:
        raise SleuthError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SleuthError(f"{path}: is no UTF-8 text; a recipe is a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        where = f"{path}:{line.group(1)}" if line else str(path)
        hint = "" if path.suffix == ".toml" else "; a recipe is a TOML file: `sleuth recipes demo` prints one"
        raise SleuthError(f"{where}: is no TOML: {error}{hint}") from None
    except (ValueError, RecursionError) as error:  # thousands of digits or of brackets
        raise SleuthError(f"{path}: is no TOML that can be read: {error}") from None


def dump_toml(recipe: StrictModel) -> str:
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
