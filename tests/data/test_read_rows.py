from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from refusals import line_of

from sleuth.data.rows import count_rows, read_rows, rows_and_faults, text_of
from sleuth.types import SleuthError

ROWS = [{"id": "a", "contents": "one"}, {"id": "b", "contents": "tvö"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def complaint(path: Path) -> str:
    return line_of(lambda: list(read_rows(path)))


def test_every_format_gives_the_same_rows_with_their_places(tmp_path: Path) -> None:
    plain, zipped, parquet = (tmp_path / name for name in ("rows.jsonl", "rows.jsonl.gz", "rows.parquet"))
    plain.write_bytes(LINES)
    zipped.write_bytes(gzip.compress(LINES))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), parquet)
    for path in (plain, zipped, parquet):
        assert list(read_rows(path)) == [(f"{path}:1", ROWS[0]), (f"{path}:2", ROWS[1])]


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


def test_a_parquet_file_that_is_not_decoded_to_its_end_is_an_error_and_an_empty_one_has_no_rows(tmp_path: Path) -> None:
    rows = 400_000
    shared = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), ["who?"])
    pyarrow.parquet.write_table(pyarrow.table({"question": shared}), tmp_path / "equal.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"question": shared[:0]}), tmp_path / "empty.parquet")
    assert list(rows_and_faults(tmp_path / "empty.parquet")) == []
    assert count_rows(tmp_path / "equal.parquet") == rows
    *_, (_, fault) = rows_and_faults(tmp_path / "equal.parquet")
    assert "unpacks to more than 100 times its" in str(fault)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "1", "id": "2"}', "the key `id` twice"),
        (b"\n" * (10**6 + 1), "more than 1,000,000 empty lines"),
    ],
)
def test_a_line_without_one_meaning_is_refused(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(line + b"\n")
    [(_, fault)] = rows_and_faults(tmp_path / "rows.jsonl")
    assert reason in str(fault)


def test_of_50_000_columns_eight_are_named() -> None:
    with pytest.raises(SleuthError, match=r"column7 and 49,992 more$"):
        text_of({f"column{number}": 1 for number in range(50_000)}, "question", "rows:1")


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "1"}\n')
    assert [row for _, row in rows_and_faults(tmp_path / "rows.jsonl")] == [{"id": "1"}]
