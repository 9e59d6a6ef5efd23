"""Decodes a parquet file to Arrow's stream on stdout within limits of memory and time; `sleuth.data.rows` starts it.

A few bytes of parquet can ask for anything: a page of gigabytes, a text that millions of rows share, types so deep that
the library's stack ends. No field of the file can be believed about it, so a process of its own bounds it. It is run as
a file and imports nothing of the package. Why it stopped is one line of JSON on stderr.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

BATCH_ROWS, BATCH_BYTES = 1024, 2**25
"""Rows that are decoded at once, and about their bytes if the footer is right."""
BUFFER = 2**14
"""Of each column: there may be 50,000."""
ROW_BYTES, VALUE_BYTES = 200, 16
"""What a row and a value count at least: empty ones take memory too."""
SECONDS, BYTES_PER_SECOND = 20, 10**6
"""Of the processor, and one second more for so many bytes of the file."""
LONGEST = 300
"""Characters of what the library says."""


def main() -> None:
    """Writes batches of at most `most` bytes, or of one row, until the file ends or is refused."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    import pyarrow
    import pyarrow.parquet

    path, done = Path(asked["path"]), 0
    size = path.stat().st_size
    limit(asked["memory"], SECONDS + size // BYTES_PER_SECOND)
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # the others reserve addresses
    left, stream = max(asked["most"], asked["ratio"] * size), None
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as table:
            leaves = {table.schema.column(index).path for index in range(len(table.schema))}
            wanted = asked["columns"] or [name for name in table.schema_arrow.names if name != asked["without"]]
            present = [name for name in wanted if any(f"{leaf}.".startswith(f"{name}.") for leaf in leaves)]
            rows = {"rows": str(table.metadata.num_rows)}
            for batch in table.iter_batches(_rows_at_once(table.metadata), columns=present or None, use_threads=False):
                stream = stream or pyarrow.ipc.new_stream(sys.stdout.buffer, batch.schema.with_metadata(rows))
                for piece, taken in _pieces(batch, asked["most"]):
                    left -= taken
                    if taken > asked["most"] or left < 0:
                        _stop(done, "row" if taken > asked["most"] else "ratio")
                    stream.write_batch(piece)
                    done += len(piece)
            stream = stream or pyarrow.ipc.new_stream(sys.stdout.buffer, table.schema_arrow.with_metadata(rows))
            stream.close()
    except BrokenPipeError:  # who reads has what it wanted
        return
    except MemoryError:  # of which pyarrow's is one
        _stop(done, "memory")
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, ImportError, RecursionError) as error:
        _stop(done, "damaged", " ".join(str(error).split())[:LONGEST])


def limit(memory: int, seconds: int | None) -> None:
    """From here on: so many bytes more, so many seconds of the processor, and no core file of what crashes."""
    with suppress(OSError, ValueError):  # no /proc: other systems do not bound addresses either
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _rows_at_once(metadata: Any) -> int:
    groups = [metadata.row_group(number) for number in range(min(8, metadata.num_row_groups))]
    most = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, most)))


def _pieces(batch: Any, most: int) -> Iterator[tuple[Any, int]]:
    """(rows, bytes): the batch, in halves until each has at most `most` bytes or one row."""
    taken = batch.nbytes + ROW_BYTES * len(batch) + VALUE_BYTES * sum(map(_values, batch.columns))
    if taken <= most or len(batch) <= 1:
        yield batch, taken
        return
    for start, stop in ((0, len(batch) // 2), (len(batch) // 2, len(batch))):
        yield from _pieces(batch.slice(start, stop - start), most)


def _values(array: Any) -> int:
    """The values in an array and in those within it; a text of a dictionary counts by its bytes wherever it is."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_struct(kind):
        return len(array) + sum(_values(array.field(number)) for number in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = (array.offsets[at].as_py() for at in (0, -1))
        return len(array) + _values(array.values[first:last])
    if types.is_fixed_size_list(kind):
        return len(array) + _values(array.flatten())
    if types.is_dictionary(kind):
        texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        if any(matches(kind.value_type) for matches in texts):
            sizes = compute.call_function("binary_length", [array.dictionary]).take(array.indices)
            return len(array) + (compute.call_function("sum", [sizes]).as_py() or 0) // VALUE_BYTES
    return len(array)


def _stop(done: int, why: str, reason: str = "") -> None:
    """Says why, and ends the process without the end of the stream."""
    sys.stdout.flush()
    print("\n" + json.dumps({"done": done, "why": why, "reason": reason}), file=sys.stderr, flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
