"""`sleuth check data`: what it prints, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl"
    rows = [
        {"id": str(i), "question": f"Who is {i}?", "golden_answers": ["Ada"], "data_source": "nq"} for i in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sound_data_is_counted(good: Path) -> None:
    result = sleuth("check", "data", good)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{good}: 3 rows, 3 questions",
        "          3  nq",
        "malformed rows: 0",
        "ids that an earlier row has: 0",
        "questions that an earlier row asks: 0",
        "golden answers that are empty once normalised: 0",
    ]


def test_malformed_data_ends_with_status_2_after_all_that_was_found(good: Path) -> None:
    good.write_text(good.read_text() + "{}\n" * 7)
    result = sleuth("check", "data", good)
    assert result.exit_code == 2
    assert "malformed rows: 7" in result.stdout
    assert f"  {good}:4: no `question`; the row has no keys" in result.stdout
    assert "  and 2 more" in result.stdout
    assert result.stderr.startswith(f"error: {good}: of 10 rows, malformed: 7, with a repeated id: 0; ")
    assert result.stderr.count("\n") == 1


def test_json_is_one_object_also_of_malformed_data(good: Path) -> None:
    found = json.loads(sleuth("check", "data", good, "--against", good, "--json").stdout)
    assert (found["ok"], found["rows"], found["sources"], found["overlap"]["count"]) == (True, 3, {"nq": 3}, 3)
    good.write_text(good.read_text() + "{}\n")
    result = sleuth("check", "data", good, "--json")
    assert result.exit_code == 2
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["malformed"]["count"], found["overlap"]) == (False, 1, None)


def test_a_folder_of_sets_is_data_too(good: Path) -> None:
    (good.parent / "sets" / "nq").mkdir(parents=True)
    good.rename(good.parent / "sets" / "nq" / "test.jsonl")
    result = sleuth("check", "data", good.parent / "sets")
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, "          3  nq")


def test_a_file_that_cannot_be_checked_is_one_line(good: Path) -> None:
    (good.parent / "empty.jsonl").write_text("")
    for what, message in {
        "none.jsonl": "none.jsonl: no such file",
        "empty.jsonl": "empty.jsonl: no questions in it",
    }.items():
        result = sleuth("check", "data", good.parent / what)
        assert result.exit_code == 2
        assert result.stderr == f"error: {good.parent / message}\n"
    (good.parent / "notes.md").write_text("mine")
    for what in (good.parent, good.parent / "notes.md"):
        refused = sleuth("check", "data", what)
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"error: {what}: not a file of questions (.jsonl, .jsonl.gz, .parquet, ")


def test_citations_of_rows_to_refine_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {
            "id": "1",
            "question": "a?",
            "tool_output": "<snippet id=a>x</snippet>",
            "answer": "<snippet id=a>x</snippet>",
        },
        {"id": "2", "question": "b?", "answer": "x [1][3].", "sources": [{"id": "1", "text": "x"}]},
        {"id": "3", "question": "c?", "tool_output": "nothing found"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = sleuth("check", "data", path)
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert "tool outputs to refine: 2" in lines
    assert lines[lines.index("answers that cite what their tool output does not have: 1") + 1] == (
        f"  {path}:2: the answer cites 3"
    )
    assert f"  {path}:3: `tool_output` holds no snippet" in result.stdout
    found = json.loads(sleuth("check", "data", path, "--json").stdout)
    assert (found["tool_outputs"], found["unknown_citations"]["count"]) == (2, 1)
