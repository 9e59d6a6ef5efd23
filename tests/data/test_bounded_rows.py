"""Compressed input does not fill the memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.data.documents import documents_and_faults
from sleuth.data.rows import read_rows, rows_and_faults
from sleuth.types import SleuthError

READ = """
import resource, sys
from pathlib import Path
from sleuth.data.rows import read_rows
from sleuth.types import SleuthError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(read_rows(Path(sys.argv[1])))
except SleuthError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_line_of_half_a_gigabyte_is_refused_with_the_variable_that_allows_it(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as lines:
        lines.write(b'{"id": "1"}\n{"id": "')
        for _ in range(512):
            lines.write(b"a" * 2**20)
    done = subprocess.run([sys.executable, "-c", READ, str(file)], capture_output=True, text=True, check=True)
    line, kilobytes = done.stdout.splitlines()
    assert line == f"{file}:2: the line is larger than 64 MB; SLEUTH_MAX_ROW_MB in the environment raises this bound"
    assert int(kilobytes) < 250_000


def test_the_bound_is_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "1"}\n' + '{"id": "' + "a" * 1_500_000 + '"}\n{"id": "3"}\n')
    assert len(list(read_rows(file))) == 3
    monkeypatch.setenv("SLEUTH_MAX_ROW_MB", "1")
    (_, first), (where, fault) = rows_and_faults(file)
    assert first == {"id": "1"}
    assert where == f"{file}:2"
    assert isinstance(fault, SleuthError)
    monkeypatch.setenv("SLEUTH_MAX_ROW_MB", "some")
    with pytest.raises(SleuthError, match="SLEUTH_MAX_ROW_MB = 'some': expected a whole number of MB"):
        list(read_rows(file))


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_a_plain_text_is_bounded_too(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / name
    with gzip.open(file, "wb") if name.endswith(".gz") else file.open("wb") as text:
        text.write(b"word " * 300_000)
    [(_, document)] = documents_and_faults(file)
    assert not isinstance(document, SleuthError)
    monkeypatch.setenv("SLEUTH_MAX_ROW_MB", "1")
    [(_, fault)] = documents_and_faults(file)
    assert isinstance(fault, SleuthError)
    assert "SLEUTH_MAX_ROW_MB" in str(fault)
