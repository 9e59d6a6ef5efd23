"""`sleuth check data`: what it prints, as text and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb import printed_json, sleuth, write_rows


@pytest.fixture
def good(tmp_path: Path) -> Path:
    rows = [
        {"id": str(i), "question": f"Who is {i}?", "golden_answers": ["Ada"], "data_source": "nq"} for i in range(3)
    ]
    return write_rows(tmp_path / "sets" / "nq" / "test.jsonl", rows)


def test_sound_data_is_counted_in_a_file_or_a_folder_of_sets(good: Path) -> None:
    for place in (good, good.parents[1]):
        result = sleuth("check", "data", place)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[1:] == [
            "          3  nq",
            "malformed rows: 0",
            "ids that an earlier row has: 0",
            "questions that an earlier row asks: 0",
            "golden answers that are empty once normalised: 0",
        ]
    found = printed_json("check", "data", good, "--against", good)
    assert (found["ok"], found["rows"], found["sources"], found["overlap"]["count"]) == (True, 3, {"nq": 3}, 3)


def test_a_file_that_cannot_be_checked_is_one_line(tmp_path: Path) -> None:
    for name in ("empty.jsonl", "notes.md"):
        (tmp_path / name).touch()
    for name, said in {
        "none.jsonl": "no such file",
        "empty.jsonl": "no questions in it",
        "notes.md": "not a file of questions (.jsonl, .jsonl.gz, .parquet, ",
        ".": "not a file of questions (.jsonl, .jsonl.gz, .parquet, ",
    }.items():
        result = sleuth("check", "data", tmp_path / name)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), name
        assert result.stderr.startswith(f"error: {tmp_path / name}: {said}"), name


def test_citations_of_rows_to_refine_are_checked(tmp_path: Path) -> None:
    snippet = "<snippet id=a>x</snippet>"
    rows = [
        {"id": "1", "question": "a?", "tool_output": snippet, "answer": snippet},
        {"id": "2", "question": "b?", "answer": "x [1][3].", "sources": [{"id": "1", "text": "x"}]},
        {"id": "3", "question": "c?", "tool_output": "nothing found"},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    result = sleuth("check", "data", path)
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert "tool outputs to refine: 2" in lines
    at = lines.index("answers that cite what their tool output does not have: 1")
    assert lines[at + 1] == f"  {path}:2: the answer cites 3"
    assert f"  {path}:3: `tool_output` holds no snippet" in result.stdout
    found = printed_json("check", "data", path, status=2)
    assert (found["tool_outputs"], found["unknown_citations"]["count"]) == (2, 1)
