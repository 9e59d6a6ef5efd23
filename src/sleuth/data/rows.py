"""Rows of JSON lines and parquet files, each with its place for error messages."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.tables import TABLES, csv_rows, json_rows
from sleuth.types import SleuthError
from sleuth.variables import ROW

Row = Mapping[str, Any]
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
PARQUET_BATCH = 1024  # rows in memory at once


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """Streams (`where`, row) from a .jsonl, .jsonl.gz, .parquet, .csv, .tsv or .json file; `where` is "file:line",
    counted from 1.

    Blank lines are skipped. A parquet file is read in batches, and only its `columns` if it has any of them (`a.b` is
    field b of column a). Raises SleuthError for a missing, damaged or unknown file, a line that is no JSON object and
    one that is larger than `variables.ROW`.
    """
    return ((where, valid_row(row)) for where, row in rows_and_faults(path, columns))


def rows_and_faults(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row | SleuthError]]:
    """As `read_rows`, but yields the error of an invalid line in place of its row and continues. Damage to the file
    itself is yielded last."""
    if not path.is_file():
        raise SleuthError(f"{path}: no such file")
    if path.name.endswith(ENDINGS[:2]):
        return _json_rows(path)
    if path.name.endswith(ENDINGS[2]):
        return _parquet_rows(path, columns)
    if path.suffix == ".json":
        return json_rows(path)
    if path.suffix in TABLES:
        return csv_rows(path)
    *others, last = (*ENDINGS, *TABLES)
    raise SleuthError(f"{path}: unknown format; the name should end in {', '.join(others)} or {last}")


def valid_row(row: Row | SleuthError) -> Row:
    """The row. Raises the error that stands in its place."""
    if isinstance(row, SleuthError):
        raise row
    return row


def text_of(row: Row, key: str, where: str) -> str:
    """The non-blank text under `key`. Raises SleuthError if it is missing or something else."""
    if key not in row:
        raise SleuthError(f"{where}: no `{key}`; the row has {', '.join(row) or 'no keys'}")
    return checked_text(row[key], key, where)


def texts_of(value: Any, key: str, where: str) -> tuple[str, ...]:
    """A list of strings (or numpy array), a bare string or None, as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence | np.ndarray):
        raise SleuthError(f"{where}: `{key}` should be a list of strings, found {type(value).__name__}")
    return tuple(checked_text(entry, key, where) for entry in value)


def checked_text(value: object, key: str, where: str) -> str:
    """`value` if it is non-blank text that UTF-8 can encode; raises SleuthError otherwise."""
    if not isinstance(value, str):
        raise SleuthError(f"{where}: `{key}` should be a string, found {type(value).__name__}")
    if not value.strip():
        raise SleuthError(f"{where}: `{key}` is empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell an unpaired surrogate, which no file and no index can hold
        raise SleuthError(f"{where}: `{key}` holds an unpaired surrogate, which is not text") from None
    return value


def _json_rows(path: Path) -> Iterator[tuple[str, Row | SleuthError]]:
    number = 0
    most = ROW.bytes
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            for number, line in enumerate(iter(partial(lines.readline, most + 1), b""), start=1):
                where = f"{path}:{number}"
                if len(line) > most:
                    yield where, SleuthError(f"{where}: the line is {ROW.exceeded()}")
                    return
                if line.strip():
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
    except (ValueError, RecursionError) as error:  # thousands of digits or of nested brackets
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
            leaves = {table.schema.column(index).path for index in range(len(table.schema))}
            present = [name for name in columns if any(f"{leaf}.".startswith(f"{name}.") for leaf in leaves)]
            for batch in table.iter_batches(PARQUET_BATCH, columns=present or None):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except UnicodeDecodeError:
        yield f"{path}:{number + 1}", SleuthError(f"{path}: not UTF-8 text after row {number}")
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, ImportError) as error:
        fault = f"{path}: damaged parquet file after row {number} ({error})"
        yield f"{path}:{number + 1}", SleuthError(fault.replace("\n", " "))
