"""`sleuth compare`, from runs that were really made: what is printed, and one model under two dialects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verb import printed_json, sleuth, write_rows

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


def answered(number: int, *, right: bool) -> dict[str, Any]:
    """A record: wrong answers were given without a search."""
    return {
        "id": f"q{number}",
        "question": f"question {number}",
        "golden_answers": ["Tarn"],
        "kind": "one_hop",
        "em": float(right),
        "answer": "Tarn" if right else "Quell",
        "searches": int(right),
        "segments": [{"author": "policy", "text": "<answer>", "tokens": 12 + number}],
        "actions": [],
    }


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Evaluations of 30 questions of which 3, 27 and 28 are right."""
    files = [tmp_path / f"{name}.json" for name in "abc"]
    for file, skill in zip(files, (3, 27, 28), strict=True):
        file.write_text(json.dumps({"records": [answered(n, right=n < skill) for n in range(30)]}))
    return files


def test_two_sides_are_one_table_that_fits_a_terminal(files: list[Path]) -> None:
    result = sleuth("compare", *files[:2], COLUMNS="100")
    assert result.exit_code == 0
    table = [line for line in result.stdout.splitlines() if line.startswith(" ")]
    [row] = [line.split() for line in table if line.startswith(" em ")]
    assert row[1::3] == ["0.100", "0.900", "+0.800", "<0.001"]
    assert max(map(len, table)) <= 100
    for said in ("30 questions answered by all", "b minus a", "Never searches, and is wrong"):
        assert said in result.stdout


def test_a_comparison_of_files_of_one_run_without_its_chain_has_a_note(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "run" / "eval").mkdir(parents=True)
    monkeypatch.chdir(folder)
    names = [file.rename(folder / file.name).name for file in files[:2]]
    assert sleuth("compare", *names).stderr == ""
    (folder.parent / "recipe.toml").touch()
    assert sleuth("compare", *names).stderr.startswith(f"note: {folder.parent} has no chain.jsonl")


def test_json_and_the_page_have_the_same_comparison(files: list[Path], tmp_path: Path) -> None:
    found = printed_json("compare", *files[:2], "--out", tmp_path / "page.html")
    assert found["modes"]["a"]["never_searches"] == 27
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_one_model_under_two_dialects_is_one_table_with_a_note(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": "Where was Ada born?", "golden_answers": ["Tarn"]} for i in range(3)]
    write_rows(tmp_path / "q.jsonl", rows)
    files = []
    for dialect in ("sleuth", "search_r1"):
        files.append(tmp_path / f"{dialect}.json")
        asked = ("--questions", tmp_path / "q.jsonl", "--context", 160, "--dialect", dialect, "--out", files[-1])
        assert sleuth("eval", BASE, *asked).exit_code == 0
    told = printed_json("compare", *files)
    assert list(told["arms"]) == ["sleuth", "search_r1"]
    assert told["questions"] == 3
    assert "dialect.name: sleuth `sleuth`, search_r1 `search_r1`" in told["protocol_differences"]
    assert "response_tokens_mean" in told["figures"]
