"""Corpora in parquet with columns that are not needed, or invalid text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sleuth.retrieval.corpus import read_corpus
from sleuth.types import SleuthError


def test_only_the_needed_columns_are_read(tmp_path: Path) -> None:
    file = tmp_path / "corpus.parquet"
    rows = {
        "id": ["1", "2"],
        "contents": ["a town", "a lake"],
        "at": pa.array([1, 2**62], pa.timestamp("ns", tz="Nowhere/Such")),
    }
    pq.write_table(pa.table(rows), file)
    assert [passage.text for passage in read_corpus(file)] == ["a town", "a lake"]


def test_bytes_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "corpus.parquet"
    valid = pa.array(["a town", "xx"])
    broken = pa.Array.from_buffers(pa.string(), 2, [None, valid.buffers()[1], pa.py_buffer(b"a town\xff\xfe")])
    pq.write_table(pa.table({"id": ["1", "2"], "contents": broken}), file)
    with pytest.raises(SleuthError, match="not UTF-8 text") as refused:
        list(read_corpus(file))
    assert "\n" not in str(refused.value)
