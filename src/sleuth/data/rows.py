"""Rows of JSON lines, parquet files and tables, each with its place for error messages."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

import numpy as np

from sleuth.data import parquet_worker
from sleuth.host.atomic import write_text
from sleuth.host.variables import ROW
from sleuth.types import SleuthError

T = TypeVar("T")
Row = Mapping[str, Any]
Found = tuple[str, Row | SleuthError]
"""`file:line`, and the row or what is wrong with it."""
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
FORMATS = (*ENDINGS, ".csv", ".tsv", ".json")
"""Those after `ENDINGS` are read whole or converted: runs read them too, but the others are faster."""
RATIO = 100
"""How many times its size a file may unpack to, if that is more than a row may have. Packed text has a tenth of its
size; what has a hundredth repeats itself and is not worth hours."""
PARQUET_MEMORY = 24
"""Times the bound of a row that decoding a parquet file may take."""
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a damaged .gz file raises."""
MAX_EMPTY_LINES = 10**6
"""In a row."""
NAMED = 8
"""Names that a message lists."""


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """Streams (`where`, row) from a .jsonl, .jsonl.gz, .parquet, .csv, .tsv or .json file; `where` is "file:line",
    counted from 1.

    Blank lines are skipped. A parquet file is read in batches by another process, and only its `columns` if it has
    any of them (`a.b` is field b of column a). Raises SleuthError for a missing, damaged or unknown file, a line
    that is no JSON object, a row that is larger than `variables.ROW`, and a file that unpacks to `RATIO` times it.
    """
    return ((where, valid_row(row)) for where, row in rows_and_faults(path, columns))


def finished_lines(file: Path, read: Callable[[Any], T], wrong: str) -> list[T]:
    """What `read` makes of every JSON line of a file that earlier calls appended to; nothing if it is not there. An
    incomplete last line, as a kill leaves it, is removed. Raises SleuthError, with `wrong`, if there are others than
    `read` takes."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    *lines, rest = text.split("\n")
    found = []
    for number, line in enumerate(lines or [rest] * bool(rest), start=1):
        try:
            found.append(read(json.loads(line)))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            if lines or not (rest.startswith('{"') and isinstance(error, json.JSONDecodeError)):
                raise SleuthError(f"{file}:{number}: {wrong}") from None
    if rest:
        write_text(file, text.removesuffix(rest))
    return found[: len(lines)]


def rows_and_faults(path: Path, columns: Sequence[str] = (), without: str = "") -> Iterator[Found]:
    """As `read_rows`, but yields the error of an invalid line in place of its row and continues. Damage to the file
    itself is yielded last. Of a parquet file the column `without` is not read."""
    _require_file(path)
    if path.name.endswith(".parquet"):
        return _parquet_rows(path, columns, without)
    readers = {
        ".jsonl": _json_lines,
        ".jsonl.gz": _json_lines,
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".json": _json_list,
    }
    read = next((read for ending, read in readers.items() if path.name.endswith(ending)), None)
    if read is None:
        *others, last = FORMATS
        raise SleuthError(f"{path}: unknown format; the name should end in {', '.join(others)} or {last}")
    return read(path)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise SleuthError(f"{path}: {'is not an ordinary file' if path.exists() else 'no such file'}")


def valid_row(row: Row | SleuthError) -> Row:
    """The row. Raises the error that stands in its place."""
    if isinstance(row, SleuthError):
        raise row
    return row


def text_of(row: Row, key: str, where: str) -> str:
    """The non-blank text under `key`. Raises SleuthError if it is missing or something else."""
    if key not in row:
        table = "; the first line of a table names its columns" if where.endswith((".csv:2", ".tsv:2")) else ""
        raise SleuthError(f"{where}: no `{key}`; the row has {listed(row) or 'no keys'}{table}")
    return checked_text(row[key], key, where)


def listed(names: Iterable[str]) -> str:
    """The first few names: `id, question and 3 more`."""
    found = list(names)
    more = f" and {len(found) - NAMED:,} more" if len(found) > NAMED else ""
    return ", ".join(name[:100] for name in found[:NAMED]) + more


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


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it ends in .gz. Reading raises SleuthError where they are too many for its
    size, and what `DAMAGED` has."""
    with path.open("rb") as file:
        if path.suffix == ".gz":
            yield io.BufferedReader(_Unpacked(path, gzip.GzipFile(fileobj=file)), 2**17)
        else:
            yield file


class _Unpacked(io.RawIOBase):
    def __init__(self, path: Path, packed: gzip.GzipFile) -> None:
        self._path, self._packed = path, packed
        self._left = max(ROW.bytes, RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._packed.readinto1(buffer)  # once: what comes before damage is returned before the error
        self._left -= count
        if self._left < 0:
            raise SleuthError(unpacked_too_large(self._path))
        return count


def unpacked_too_large(path: Path) -> str:
    """The line about a file that unpacks to more than it can be worth."""
    return f"{path}: unpacks to more than {RATIO} times its {path.stat().st_size:,} bytes, and is {ROW.exceeded()}"


def _json_lines(path: Path) -> Iterator[Found]:
    number = empty = 0
    most = ROW.bytes
    try:
        with opened(path) as lines:
            for number, line in enumerate(iter(partial(lines.readline, most + 1), b""), start=1):
                where = f"{path}:{number}"
                if len(line) > most:
                    yield where, SleuthError(f"{where}: the line is {ROW.exceeded()}")
                    return
                if line.strip():
                    empty = 0
                    yield where, _json_object(line, where)
                    continue
                empty += 1
                if empty > MAX_EMPTY_LINES:
                    yield where, SleuthError(f"{where}: more than {MAX_EMPTY_LINES:,} empty lines one after another")
                    return
    except SleuthError as error:
        yield f"{path}:{number + 1}", SleuthError(f"{error}, after line {number:,}")
    except DAMAGED as error:
        yield f"{path}:{number + 1}", SleuthError(f"{path}: damaged gzip file after line {number} ({error})")


def _json_object(line: bytes, where: str) -> Row | SleuthError:
    try:
        row = _decode_json(line.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError:
        return SleuthError(f"{where}: not UTF-8 text")
    except json.JSONDecodeError as error:
        return SleuthError(f"{where}: not JSON ({error.msg}, column {error.colno})")
    except (ValueError, RecursionError) as error:  # a key twice, thousands of digits or of nested brackets
        return SleuthError(f"{where}: not JSON ({error})")
    return _object(row, where)


def _object(row: Any, where: str) -> Row | SleuthError:
    wrong = f"{where}: expected a JSON object, found {type(row).__name__}"
    return row if isinstance(row, dict) else SleuthError(wrong)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key `{twice[:100]}` twice")
    return row


_decode_json = json.JSONDecoder(object_pairs_hook=_distinct).decode
"""The value that JSON spells. Raises ValueError for an object with a key twice, which readers read differently."""


def _json_list(path: Path) -> Iterator[Found]:
    """Each object of the list in the file, or under the one key that has a list."""
    try:
        if path.stat().st_size > ROW.bytes:
            raise SleuthError(f"{path}: {ROW.exceeded()}, or write one object a line, as .jsonl")
        found = _decode_json((text := path.read_bytes()).decode(json.detect_encoding(text)))
        lists = [value for value in found.values() if isinstance(value, list)] if isinstance(found, dict) else [found]
        if len(lists) != 1 or not isinstance(lists[0], list):
            raise SleuthError(f"{path}: should be a list of objects, or an object with one such list")
    except SleuthError as error:
        yield f"{path}:1", error
    except UnicodeDecodeError:
        yield f"{path}:1", SleuthError(f"{path}: not UTF-8 text")
    except json.JSONDecodeError as error:
        hint = "; a file with one object a line is .jsonl" if error.msg == "Extra data" else ""
        yield f"{path}:{error.lineno}", SleuthError(f"{path}:{error.lineno}: not JSON ({error.msg}){hint}")
    except (ValueError, RecursionError) as error:
        yield f"{path}:1", SleuthError(f"{path}: not JSON ({error})")
    else:
        for number, row in enumerate(lists[0], start=1):
            yield f"{path}:{number}", _object(row, f"{path}:{number}")


def _csv_rows(path: Path) -> Iterator[Found]:
    """Each row under the heading. A cell that holds a JSON list is that list, and an empty one is left out."""
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
    """The lines of a file. Raises csv.Error after `left[0]` characters, which the reader of a row sets again, and for a
    NUL byte."""
    while line := lines.readline(left[0] + 1):
        left[0] -= len(line)
        if left[0] < 0:
            raise csv.Error(f"a row is {ROW.exceeded()}")
        if "\0" in line:
            raise csv.Error("a NUL byte, which no text holds")
        yield line


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


def count_rows(path: Path) -> int:
    """The lines of a file, or the rows of a parquet one by its footer. Raises SleuthError if it cannot be read."""
    _require_file(path)
    if path.name.endswith(".parquet"):
        with _decoded(path, (), whole=False) as stream:
            return int(stream.schema.metadata[b"rows"])
    with opened(path) as lines:
        return sum(block.count(b"\n") for block in iter(lambda: lines.read(2**20), b""))


def _parquet_rows(path: Path, columns: Sequence[str], without: str) -> Iterator[Found]:
    number = 0
    try:
        with _decoded(path, columns, without) as stream:
            for batch in stream:
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except UnicodeDecodeError:
        yield f"{path}:{number + 1}", SleuthError(f"{path}: not UTF-8 text after row {number}")
    except SleuthError as error:
        yield f"{path}:{number + 1}", error


@contextmanager
def _decoded(path: Path, columns: Sequence[str], without: str = "", *, whole: bool = True) -> Iterator[Any]:
    """The stream of Arrow of a process that decodes a parquet file. Raises SleuthError where that stopped before the
    end, unless not the `whole` is read."""
    import pyarrow

    memory = PARQUET_MEMORY * ROW.bytes
    asked = {"path": str(path), "columns": list(columns), "without": without}
    asked |= {"most": ROW.bytes, "ratio": RATIO, "memory": memory}
    with subprocess.Popen(
        [sys.executable, "-P", parquet_worker.__file__, json.dumps(asked)],  # -P: its folder is not imported from
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with pyarrow.ipc.open_stream(process.stdout) as stream:
                yield stream
            if whole and process.wait():
                raise OSError("ended early")
        except (pyarrow.ArrowException, OSError) as error:  # the stream has no end
            process.stdout.close()  # so that it ends, if it has not
            said = process.stderr.read()
            raise SleuthError(_why_not_decoded(path, process.wait(), said, str(error))) from None
        finally:
            process.kill()


def _why_not_decoded(path: Path, status: int, said: bytes, error: str) -> str:
    """The line for what the process said last, or for how it ended."""
    try:
        stopped = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        stopped = {"done": 0, "why": "memory" if status == -signal.SIGABRT else "crash"}
    done, row = stopped["done"], f"after row {stopped['done']:,}"
    if stopped["why"] == "row":
        return f"{path}:{done + 1}: the row is {ROW.exceeded()}"
    if stopped["why"] == "ratio":
        return f"{unpacked_too_large(path)}, {row}"
    if stopped["why"] == "memory":
        return f"{path}: decoding it {row} takes more than {PARQUET_MEMORY} times the bound of a row ({ROW.exceeded()})"
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"{path}: decoding it takes too long for its {path.stat().st_size:,} bytes; is it hostile?"
    reason = stopped.get("reason") or f"its reader ended by signal {-status}: {error}"
    return f"{path}: damaged parquet file {row} ({reason})"


def table_in(value: Any, key: str, where: str) -> Mapping[str, Any]:
    """A table, which may be given as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SleuthError(f"{where}: `{key}` is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise SleuthError(f"{where}: `{key}` should be a table, found {type(value).__name__}")
    return value
