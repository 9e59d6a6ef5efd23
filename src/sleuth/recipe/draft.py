"""`Draft`: an unchecked recipe as plain tables, and the file or override that each key is from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.types import SleuthError

Key = tuple[str | int, ...]
"""The path of a value: `("stage", 0, "steps")`, written `stage.0.steps`."""


def dotted(key: Sequence[str | int]) -> str:
    """A key as text: `stage.0.steps`."""
    return ".".join(str(part) for part in key)


def leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (key, value) for each value of nested tables. An array is one value."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


class Draft:
    """The merged layers of a recipe. `problems` has a line for each key that could not be set."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table: dict[str, Any] = {}
        self.problems: list[str] = []
        self._writers: dict[Key, str] = {}

    def merge(self, table: Mapping[str, Any], writer: str) -> None:
        """Merges the tables of a file into the draft: tables merge, any other value (a list too) replaces."""
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
        for part in key:
            if isinstance(node, list) and re.fullmatch(r"-?\d+", part) and -len(node) <= int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict):
                node = node.get(part)
            else:
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
