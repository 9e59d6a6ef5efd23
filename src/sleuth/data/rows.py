"""Rows of a table on disk, whatever its format, each with the place a message can point at."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.types import SleuthError

Row = Mapping[str, Any]
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
PARQUET_BATCH = 1024  # rows in memory at once


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """Stream (`where`, row) from a .jsonl, .jsonl.gz or .parquet file; `where` is "file:line", counted from 1.

    Blank lines are skipped. Of a parquet file only `columns` are read, where it has any of them (`a.b` is the field b
    of the column a), a batch at a time. A missing, damaged or unknown file and a line that is no JSON object raise
    SleuthError.
    """
    return map(_sound, rows_and_faults(path, columns))


def rows_and_faults(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row | SleuthError]]:
    """`read_rows` that goes on behind a line that is no row, and has its error in the row's place. Behind damage to the
    file itself there is nothing to go on with: that is the last."""
    if not path.is_file():
        raise SleuthError(f"{path}: no such file")
    if path.name.endswith(ENDINGS[:2]):
        return _json_rows(path)
    if path.name.endswith(ENDINGS[2]):
        return _parquet_rows(path, columns)
    raise SleuthError(f"{path}: unknown format; the name should end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")


def _sound(found: tuple[str, Row | SleuthError]) -> tuple[str, Row]:
    where, row = found
    if isinstance(row, SleuthError):
        raise row
    return where, row


def text_of(row: Row, key: str, where: str) -> str:
    """The non-blank text under `key`, or a SleuthError that says what is there instead."""
    if key not in row:
        raise SleuthError(f"{where}: no `{key}`; the row has {', '.join(row) or 'no keys'}")
    return checked_text(row[key], key, where)


def texts_of(value: Any, key: str, where: str) -> tuple[str, ...]:
    """A list of strings, a bare string (a list of one) or nothing, as a tuple. Lists may be numpy arrays."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence | np.ndarray):
        raise SleuthError(f"{where}: `{key}` should be a list of strings, found {type(value).__name__}")
    return tuple(checked_text(entry, key, where) for entry in value)


def checked_text(value: object, key: str, where: str) -> str:
    """`value` if it is text that can be written as UTF-8 and is not blank, or a SleuthError."""
    if not isinstance(value, str):
        raise SleuthError(f"{where}: `{key}` should be a string, found {type(value).__name__}")
    if not value.strip():
        raise SleuthError(f"{where}: `{key}` is empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON may spell half of a surrogate pair, which no file and no index can hold
        raise SleuthError(f"{where}: `{key}` holds half of a surrogate pair, which is not text") from None
    return value


def _json_rows(path: Path) -> Iterator[tuple[str, Row | SleuthError]]:
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield where, _json_object(line, where)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            where = f"{path}:{number + 1}"
            yield where, SleuthError(f"{path}: damaged gzip file after line {number} ({error})")


def _json_object(line: bytes, where: str) -> Row | SleuthError:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return SleuthError(f"{where}: not UTF-8 text")
    except json.JSONDecodeError as error:
        return SleuthError(f"{where}: not JSON ({error.msg}, column {error.colno})")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested brackets
        return SleuthError(f"{where}: not JSON ({error})")
    if not isinstance(row, dict):
        return SleuthError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Row | SleuthError]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            held = {table.schema.column(at).path for at in range(len(table.schema))}
            wanted = [name for name in columns if any(f"{leaf}.".startswith(f"{name}.") for leaf in held)]
            for batch in table.iter_batches(PARQUET_BATCH, columns=wanted or None):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        fault = f"{path}: damaged parquet file after row {number} ({error})"
        yield f"{path}:{number + 1}", SleuthError(fault.replace("\n", " "))
