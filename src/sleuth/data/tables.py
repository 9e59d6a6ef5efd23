"""Rows of .csv, .tsv and .json files, each with its place for error messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from sleuth.host.variables import ROW
from sleuth.types import SleuthError

TABLES = (".csv", ".tsv", ".json")
"""Formats that are read whole or converted; runs read them too, but the others are faster."""
Found = tuple[str, Mapping[str, Any] | SleuthError]


def csv_rows(path: Path) -> Iterator[Found]:
    """(`file:line`, row or error) for each row under the heading. A cell that holds a JSON list is that list, and an
    empty one is left out. Damage that ends the file is yielded last."""
    csv.field_size_limit(ROW.bytes)
    number, left = 1, [ROW.bytes]
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(_bounded(lines, left), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
            heading = [name.strip() for name in next(reader, [])]
            if len(set(heading)) != len(heading) or "" in heading:
                shown = f"{heading[:8]}" + " ..." * (len(heading) > 8)
                yield f"{path}:1", SleuthError(f"{path}:1: the first line should name each column, once: {shown}")
                return
            for cells in reader:
                number, left[0] = reader.line_num, ROW.bytes
                if len(cells) == len(heading):
                    named = zip(heading, cells, strict=True)
                    yield f"{path}:{number}", {name: _cell(cell) for name, cell in named if cell.strip()}
                elif cells:
                    found = f"{len(cells)} cells, and the first line names {len(heading)} columns"
                    yield f"{path}:{number}", SleuthError(f"{path}:{number}: has {found}; quote cells that hold commas")
    except UnicodeDecodeError:
        yield f"{path}:{number + 1}", SleuthError(f"{path}: not UTF-8 text after line {number}")
    except csv.Error as error:
        yield f"{path}:{number + 1}", SleuthError(f"{path}: not a table after line {number} ({error})")


def _bounded(lines: TextIO, left: list[int]) -> Iterator[str]:
    """The lines of a file. Raises csv.Error after `left[0]` characters, which the reader of a row sets again."""
    while line := lines.readline(left[0] + 1):
        left[0] -= len(line)
        if left[0] < 0:
            raise csv.Error(f"a row is {ROW.exceeded()}")
        yield line


def json_rows(path: Path) -> Iterator[Found]:
    """(`file:number`, row or error) for each object of the list in the file, or under the one key that has a list."""
    if path.stat().st_size > ROW.bytes:
        yield f"{path}:1", SleuthError(f"{path}: {ROW.exceeded()}, or write one object a line, as .jsonl")
        return
    try:
        found = json_object((text := path.read_bytes()).decode(json.detect_encoding(text)))
    except UnicodeDecodeError:
        yield f"{path}:1", SleuthError(f"{path}: not UTF-8 text")
        return
    except json.JSONDecodeError as error:
        hint = "; a file with one object a line is .jsonl" if error.msg == "Extra data" else ""
        yield f"{path}:{error.lineno}", SleuthError(f"{path}:{error.lineno}: not JSON ({error.msg}){hint}")
        return
    except (ValueError, RecursionError) as error:  # a key twice, thousands of digits or of nested brackets
        yield f"{path}:1", SleuthError(f"{path}: not JSON ({error})")
        return
    lists = [value for value in found.values() if isinstance(value, list)] if isinstance(found, dict) else [found]
    if len(lists) != 1 or not isinstance(lists[0], list):
        yield f"{path}:1", SleuthError(f"{path}: should be a list of objects, or an object with one such list")
        return
    for number, row in enumerate(lists[0], start=1):
        where = f"{path}:{number}"
        problem = SleuthError(f"{where}: expected a JSON object, found {type(row).__name__}")
        yield where, row if isinstance(row, dict) else problem


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key `{twice[:100]}` twice")
    return row


json_object = json.JSONDecoder(object_pairs_hook=_distinct).decode
"""The value that JSON spells. Raises ValueError for an object with a key twice, which readers read differently."""


def _cell(text: str) -> Any:
    """A cell: a list of texts if it is spelled as JSON, else the text."""
    if text.startswith("[") and text.endswith("]"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            return found
    return text
