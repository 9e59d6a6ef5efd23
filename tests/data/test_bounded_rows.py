"""Compressed input does not fill the memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sleuth.data.documents import documents_and_faults
from sleuth.data.rows import read_rows, rows_and_faults
from sleuth.types import SleuthError


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
