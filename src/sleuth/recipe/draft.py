"""A recipe while it is still being put together: plain tables, and who wrote each key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.types import SleuthError

Key = tuple[str | int, ...]
"""The way to a value: `("stage", 0, "steps")`, written `stage.0.steps`."""


def dotted(key: Sequence[str | int]) -> str:
    """`stage.0.steps`."""
    return ".".join(str(part) for part in key)


def leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of nested tables with the way to it. An array is one value."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


class Draft:
    """Layers of a recipe laid over each other, value by value. The last writer of a key is named in errors about it.
    `problems` are values that lead nowhere, a line each."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table: dict[str, Any] = {}
        self.problems: list[str] = []
        self._writers: dict[Key, str] = {}

    def lay(self, table: Mapping[str, Any], writer: str) -> None:
        """Lay a file's tables over what is there: tables merge, any other value (a list too) replaces."""
        for key, value in leaves(table):
            self.set(key, value, writer)

    def set(self, key: Sequence[str], value: Any, writer: str) -> None:
        """Write one value. A number steps into a list and may be negative; a table that is not there yet is made."""
        try:
            self._write(key, value, writer)
        except SleuthError as error:  # told with whatever else is wrong
            self.problems.append(str(error))

    def _write(self, key: Sequence[str], value: Any, writer: str) -> None:
        place: Any = self.table
        way: Key = ()
        for part in key[:-1]:
            step = self._step(place, way, part, writer)
            way = (*way, step)
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
        last = self._step(place, way, key[-1], writer)
        place[last] = value
        way = (*way, last)
        self._writers = {at: by for at, by in self._writers.items() if at[: len(way)] != way}
        self._writers[way] = writer

    def writer_of(self, key: Key) -> str:
        """Who wrote this key, or the table that holds it: a file, or an override."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._writers:
                return self._writers[key[:length]]
        return self.path

    def _step(self, place: Any, way: Key, part: str, writer: str) -> str | int:
        if isinstance(place, dict):
            return part
        if not isinstance(place, list):
            raise SleuthError(f"{writer}: {dotted((*way, part))}: {dotted(way)} is a value, not a table")
        if not re.fullmatch(r"-?\d+", part):
            raise SleuthError(
                f"{writer}: {dotted((*way, part))}: {dotted(way)} is a list; write {dotted(way)}.0.{part}"
            )
        index = int(part)
        if not -len(place) <= index < len(place):
            raise SleuthError(
                f"{writer}: {dotted((*way, part))}: {dotted(way)} has {len(place)} entries, counted from 0"
            )
        return index % len(place)
