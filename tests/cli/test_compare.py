"""`sleuth compare`, from runs that were really made: what is printed, and one model under two dialects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sleuth.cli.app import app

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


def sleuth(*arguments: object, columns: int = 100) -> Result:
    written = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, written, prog_name="sleuth", env={"COLUMNS": str(columns)})


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
    result = sleuth("compare", *files[:2])
    assert result.exit_code == 0
    table = [line for line in result.stdout.splitlines() if line.startswith(" ")]
    [row] = [line.split() for line in table if line.startswith(" em ")]
    assert row[1::3] == ["0.100", "0.900", "+0.800", "<0.001"]
    assert max(map(len, table)) <= 100
    for said in ("30 questions answered by all", "b minus a", "Never searches, and is wrong"):
        assert said in result.stdout


def test_files_are_found_by_their_names_alone(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files[0].parent)
    result = sleuth("compare", *(file.name for file in files[:2]))
    assert result.exit_code == 0
    assert "b: b.json" in result.stdout


def test_more_sides_have_a_table_for_each_pair(files: list[Path]) -> None:
    told = sleuth("compare", *files).stdout
    for title in ("b minus a", "c minus a", "c minus b"):
        assert title in told
    last = [line.split() for line in told.splitlines() if line.startswith(" em ")][-1]
    assert last[-2:] == ["1.000", "30"]  # McNemar of one gained question, none lost


def test_files_of_the_current_folder_are_looked_for_in_the_run_above_it(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "run" / "eval").mkdir(parents=True)
    monkeypatch.chdir(folder)
    names = [file.rename(folder / file.name).name for file in files[:2]]
    assert sleuth("compare", *names).stderr == ""
    (folder.parent / "recipe.toml").touch()
    assert sleuth("compare", *names).stderr.startswith(f"note: {folder.parent} has no chain.jsonl")


def test_a_narrow_terminal_gives_intervals_lines_of_their_own(files: list[Path]) -> None:
    told = sleuth("compare", f"[bold]={files[0]}", files[1], columns=80).stdout
    assert max(len(line) for line in told.splitlines() if line.startswith(" ")) <= 80
    assert "[+0.63, +0.93]" in told  # whole: no line breaks within
    assert " [bold] " in told


def test_json_is_one_object_and_nothing_else(files: list[Path], tmp_path: Path) -> None:
    result = sleuth("compare", *files[:2], "--json", "--out", tmp_path / "page.html")
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout)["modes"]["a"]["never_searches"] == 27
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_mistakes_end_with_status_2_and_one_line(files: list[Path], tmp_path: Path) -> None:
    for arguments, message in [
        ((tmp_path / "none", files[0]), "no such run, checkpoint or evaluation file"),
        ((*files[:2], "--out", tmp_path / "page.txt"), "should be FILE.html"),
    ]:
        result = sleuth("compare", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_one_model_under_two_dialects_is_one_table_with_a_note(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": "Where was Ada born?", "golden_answers": ["Tarn"]} for i in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = []
    for dialect in ("sleuth", "search_r1"):
        files.append(tmp_path / f"{dialect}.json")
        asked = ("--questions", tmp_path / "q.jsonl", "--context", 160, "--dialect", dialect, "--out", files[-1])
        assert sleuth("eval", BASE, *asked).exit_code == 0
    told = json.loads(sleuth("compare", *files, "--json").stdout)
    assert list(told["arms"]) == ["sleuth", "search_r1"]
    assert told["questions"] == 3
    assert "dialect.name: sleuth `sleuth`, search_r1 `search_r1`" in told["protocol_differences"]
    assert "response_tokens_mean" in told["figures"]
