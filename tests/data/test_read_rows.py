from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from sleuth.data.rows import read_rows, text_of
from sleuth.types import SleuthError

ROWS = [{"id": "a", "contents": "one"}, {"id": "b", "contents": "tvö"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def complaint(path: Path) -> str:
    with pytest.raises(SleuthError) as caught:
        list(read_rows(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_format_gives_the_same_rows_with_their_places(tmp_path: Path) -> None:
    plain, zipped, parquet = (tmp_path / name for name in ("rows.jsonl", "rows.jsonl.gz", "rows.parquet"))
    plain.write_bytes(LINES)
    zipped.write_bytes(gzip.compress(LINES))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), parquet)
    for path in (plain, zipped, parquet):
        assert list(read_rows(path)) == [(f"{path}:1", ROWS[0]), (f"{path}:2", ROWS[1])]


def test_blank_lines_are_skipped_and_still_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + LINES)
    assert [where for where, _ in read_rows(path)] == [f"{path}:2", f"{path}:3"]


def test_a_parquet_row_is_numbered_across_batches(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [str(i) for i in range(2500)]}), path)
    assert [where for where, _ in read_rows(path)][-1] == f"{path}:2500"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{'id': 1}", "not JSON (Expecting property name enclosed in double quotes, column 2)"),
        (b"[1, 2]", "expected a JSON object, found list"),
        (b'{"id": "\xff"}', "not UTF-8 text"),
        (b'{"id": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"id": ' + b"[" * 200_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES + line + b"\n")
    assert complaint(path).startswith(f"{path}:3: {words}")


def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    zipped, liar, parquet = (tmp_path / name for name in ("cut.jsonl.gz", "liar.jsonl.gz", "bad.parquet"))
    zipped.write_bytes(gzip.compress(LINES)[:-12])
    liar.write_bytes(LINES)
    parquet.write_bytes(LINES * 10)
    assert complaint(zipped).startswith(f"{zipped}: damaged gzip file after line")
    assert complaint(liar).startswith(f"{liar}: damaged gzip file after line 0")
    assert complaint(parquet).startswith(f"{parquet}: damaged parquet file after row 0")


def test_an_unknown_format_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_text("id\n")
    expected = "should end in .jsonl, .jsonl.gz, .parquet, .csv, .tsv or .json"
    assert expected in complaint(tmp_path / "rows.xlsx")
    assert complaint(tmp_path / "none.jsonl") == f"{tmp_path / 'none.jsonl'}: no such file"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ID": "a", "x": 1}, "f:1: no `id`; the row has ID, x"),
        ({"id": 7}, "f:1: `id` should be a string, found int"),
        ({"id": None}, "f:1: `id` should be a string, found NoneType"),
        ({"id": " \n"}, "f:1: `id` is empty"),
        ({"id": "\ud800"}, "f:1: `id` holds an unpaired surrogate, which is not text"),
    ],
)
def test_a_missing_text_is_told_with_what_is_there(row: dict[str, object], message: str) -> None:
    with pytest.raises(SleuthError) as caught:
        text_of(row, "id", "f:1")
    assert str(caught.value) == message
