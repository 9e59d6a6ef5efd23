"""Files that are tiny on disk and huge in memory: one line, within seconds, with the memory that ordinary rows take."""

from __future__ import annotations

import gzip
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pdfs import pdf

from sleuth.retrieval.bm25 import build_index

MB = 10**6
MOST_DISK = 16 * MB
MOST_MEMORY = 2_000 * MB
"""A row of 64 MB of empty lists takes 1.6 GB as Python objects, libraries included."""
MOST_SECONDS = 90
LONGEST_LINE = 4_000
ROW = b'{"id": "1", "question": "who?", "golden_answers": ["Ada"], "contents": "Ada Voss"}\n'
CONTENTS = ("index", "check data", "check corpus", "search")
TEXTS = ("check texts",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bomb:
    """`make` writes it below a folder and returns its path; `verbs` read such a file. `says` is in each one's line; an
    empty one is of a file that may be read, too."""

    make: Callable[[Path], Path]
    says: str = ""
    verbs: tuple[str, ...] = CONTENTS


def gz(*parts: bytes, times: int = 1, name: str = "rows.jsonl.gz") -> Callable[[Path], Path]:
    """Members of gzip, one for each part, so that equal parts are packed once."""

    def make(folder: Path) -> Path:
        packed = {part: gzip.compress(part) for part in {*parts}}
        (folder / name).write_bytes(b"".join(packed[part] for part in parts) * times)
        return folder / name

    return make


def plain(content: bytes, name: str = "rows.jsonl") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / name

    return make


def sparse(name: str, size: int = 8 * 10**9) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)
        return folder / name

    return make


def parquet(rows: Callable[[], pa.Table], times: int = 1, **settings: object) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        table = rows()
        with pq.ParquetWriter(folder / "rows.parquet", table.schema, **({"compression": "zstd"} | settings)) as writer:
            for _ in range(times):
                writer.write_table(table)
        return folder / "rows.parquet"

    return make


def questions(count: int = 1, contents: str = "Ada Voss", **more: object) -> pa.Table:
    one = {"id": "1", "question": "who?", "golden_answers": ["Ada"], "contents": contents} | more
    return pa.Table.from_pylist([one] * count)


def dictionary(size: int, count: int) -> pa.Table:
    """One text that many rows share."""
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["a" * size]))
    ids = pa.array([str(number) for number in range(count)])
    answers = pa.array([["Ada"]] * count)
    return pa.table({"id": ids, "question": shared, "golden_answers": answers, "contents": shared})


def many_nulls(count: int) -> pa.Table:
    return pa.table({"question": pa.nulls(count, pa.string()), "contents": pa.nulls(count, pa.string())})


def one_long_list(count: int) -> pa.Table:
    values = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(count // 8 + 1))])
    answers = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values)
    return pa.table({"id": ["1"], "question": ["who?"], "contents": ["Ada"], "golden_answers": answers})


def linked_to_a_device(folder: Path) -> Path:
    (folder / "rows.jsonl").symlink_to("/dev/zero")
    return folder / "rows.jsonl"


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "rows.parquet")
    return folder / "rows.parquet"


def whole(objects: bytes) -> bytes:
    return b'{"id": "1", "question": "who?", "contents": "Ada", "golden_answers": ' + objects + b"}\n"


RECIPE = ("check recipe",)
INDEX = ("index",)
LIMIT = "SLEUTH_MAX_ROW_MB"
BOMBS: dict[str, Bomb] = {
    "a cell of 400 MB": Bomb(
        make=parquet(lambda: questions(contents="a" * 400 * MB, question="a" * 400 * MB)), says=LIMIT
    ),
    "a text of 60 MB that 5,000 rows share": Bomb(make=parquet(lambda: dictionary(60 * MB, 5_000)), says=LIMIT),
    "2,000 texts that are each the one before": Bomb(
        make=parquet(
            lambda: questions(2_000, contents="a" * MB, question="a" * MB),
            use_dictionary=False,
            column_encoding={"contents": "DELTA_BYTE_ARRAY", "question": "DELTA_BYTE_ARRAY"},
        ),
    ),
    "100 million empty rows": Bomb(make=parquet(lambda: many_nulls(10**7), times=10)),
    "a list of 200 million numbers": Bomb(make=parquet(lambda: one_long_list(2 * 10**8))),
    "50,000 columns": Bomb(make=parquet(lambda: pa.table({f"column{n}": ["a"] for n in range(50_000)})), says=LIMIT),
    "300 million empty lines": Bomb(make=gz(b"\n" * MB, times=300), says=LIMIT),
    "a gigabyte of equal rows": Bomb(
        make=gz(b'{"question": "who?", "golden_answers": ["Ada"], "contents": "Ada"}\n' * 10**6, times=15), says=LIMIT
    ),
    "a line of 2 GB": Bomb(make=gz(b'{"id": "', *[b"a" * 10 * MB] * 200), says=LIMIT),
    "20 million empty lists": Bomb(make=gz(whole(b"[" + b"[]," * (20 * MB) + b"[]]"))),
    "eight gigabytes of nothing, as lines": Bomb(make=sparse("rows.jsonl"), says=LIMIT),
    "eight gigabytes of nothing, as a table": Bomb(make=sparse("rows.csv"), says=LIMIT),
    "a quote that never closes": Bomb(make=plain(b'id,contents\n1,"' + b"a\n" * 10**6, "rows.tsv")),
    "a device": Bomb(make=linked_to_a_device, says="not an ordinary file"),
    "a FIFO": Bomb(make=fifo, says="not an ordinary file"),
    "a text of 8 GB": Bomb(make=sparse("texts/one.txt"), says=LIMIT, verbs=(*INDEX, *TEXTS)),
    "a text of 2 GB in a small one": Bomb(
        make=gz(b"word " * 2 * MB, times=200, name="one.txt.gz"), says=LIMIT, verbs=TEXTS
    ),
    "900,000 tags": Bomb(make=plain(b"<b>" * 900_000 + b"Ada", "page.html"), verbs=INDEX),
    "a start of a tag that never ends": Bomb(make=plain(b"<a b='" * 400_000, "page.html"), verbs=INDEX),
    "a PDF of 1 GB": Bomb(
        make=lambda folder: plain(pdf(b"BT /F 9 Tf (a) Tj ET " * 50_000_000), "page.pdf")(folder), verbs=INDEX
    ),
    "a PDF whose pages are each other": Bomb(
        make=plain(pdf(b"", pages=b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"), "page.pdf"), verbs=INDEX
    ),
    "a recipe of 8 GB": Bomb(make=sparse("recipe.toml"), verbs=RECIPE),
    "a recipe of a million brackets": Bomb(make=plain(b"a = " + b"[" * 10**6, "recipe.toml"), verbs=RECIPE),
}


def arguments(verb: str, file: Path, folder: Path) -> list[object]:
    """The command line of a verb that reads `file`."""
    if verb == "index":
        return ["index", file, folder / "made"]
    if verb == "search":
        (folder / "corpus.jsonl").write_bytes(ROW)
        build_index(folder / "corpus.jsonl", folder / "index")
        return ["search", folder / "index", "--questions", file]
    if verb == "check corpus":
        (folder / "needs.jsonl").write_bytes(ROW)
        return ["check", "corpus", file, "--against", folder / "needs.jsonl"]
    if verb == "check texts":
        return ["check", "texts", file.parent if file.parent != folder else file]
    return [*verb.split(), file]


def run(command: list[object], folder: Path) -> tuple[int, str, float, float]:
    """Exit status, what is on stderr, seconds, and MB at the peak of the process or of one that it started."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (12_000 * MB, 12_000 * MB))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    peak, began = 0, time.monotonic()
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "sleuth", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            preexec_fn=limit,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        while process.poll() is None:
            peak = max([peak, *map(peak_of, [process.pid, *children(process.pid)])])
            if time.monotonic() > began + 2 * MOST_SECONDS:
                process.kill()
            time.sleep(0.01)
    return process.returncode, (folder / "stderr").read_text(errors="replace"), time.monotonic() - began, peak / 1000


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def peak_of(pid: int) -> int:
    """Kilobytes; of the program that a process runs now, not of what it was forked from."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def cases() -> Iterator[object]:
    return (pytest.param(name, verb, id=f"{name}-{verb}") for name, bomb in BOMBS.items() for verb in bomb.verbs)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("name", "verb"), [*cases()])
def test_a_bomb_takes_seconds_and_the_memory_of_a_row_and_is_one_line(name: str, verb: str, tmp_path: Path) -> None:
    bomb, place = BOMBS[name], tmp_path / "bomb"
    place.mkdir()
    file = bomb.make(place)
    assert sum(path.lstat().st_blocks * 512 for path in place.rglob("*")) < MOST_DISK
    status, text, seconds, megabytes = run(arguments(verb, file, tmp_path), tmp_path)
    assert status in (0, 2), text[-2000:]
    assert "Traceback" not in text
    assert len(text) < LONGEST_LINE
    if verb not in ("check data", "check texts", "check corpus"):  # which print findings on stdout
        assert status == 2 or not bomb.says
        assert verb == "search" or bomb.says in text, text[-2000:]
    assert seconds < MOST_SECONDS
    assert megabytes < MOST_MEMORY / MB
