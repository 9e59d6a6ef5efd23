"""`sleuth eval --suite`: the table by set, its files, and wrong command lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result
from verb import sleuth, write_rows

from sleuth.answers.suites import load_suite

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
FIGURES = ("em", "sub_match", "f1", "searches_mean", "response_tokens_mean")


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    for name, file, size in (("nq", "test.jsonl", 6), ("hotpotqa", "dev.jsonl", 4)):
        rows = [{"id": f"q_{i}", "question": f"Where was {i} born?", "golden_answers": ["Tarn"]} for i in range(size)]
        write_rows(tmp_path / "sets" / name / file, rows)
    return tmp_path / "sets"


def ask(sets: Path, *more: object) -> Result:
    return sleuth("eval", BASE, "--suite", sets, "--context", 100, *more)


def test_every_set_has_its_file_and_the_suite_the_mean_of_them(sets: Path) -> None:
    out = sets.parent / "new" / "folder" / "base.json"
    result = ask(sets, "--per-set", 4, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    suite = json.loads(out.read_text())
    assert json.loads(result.stdout) == {key: value for key, value in suite.items() if key != "protocol"}
    by_set = {name: json.loads(out.with_name(f"base@{name}.json").read_text()) for name in ("nq", "hotpotqa")}
    assert sorted(file.name for file in out.parent.iterdir()) == ["base.json", "base@hotpotqa.json", "base@nq.json"]
    for key in FIGURES:
        values = [contents[key]["value"] for contents in by_set.values()]
        assert suite[key]["value"] == pytest.approx(sum(values) / 2)
        assert (suite[key]["n"], suite["sets"]["nq"][key]) == (8, by_set["nq"][key])
    assert sum(suite["outcomes"].values()) == 8
    assert suite["suite"] == {
        "place": str(sets),
        "per_set": 4,
        "ids_sha256": load_suite(sets, 4).ids_sha256,
    }
    assert by_set["nq"]["set"]["ids_sha256"] == load_suite(sets, 4).sets[0].ids_sha256
    assert (by_set["nq"]["set"]["questions"], by_set["nq"]["set"]["of"]) == (4, 6)
    assert all(record["id"].startswith("nq/") for record in by_set["nq"]["records"])


def test_the_table_has_a_row_for_each_set_and_one_for_their_mean(sets: Path) -> None:
    result = ask(sets)
    assert result.exit_code == 0
    for shown in ("nq", "hotpotqa", "mean of 2", "EM", "sub-match", "F1", "searches", "tokens"):
        assert shown in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (
        "lacks triviaqa, popqa, 2wikimultihopqa, musique, bamboogle: its mean is over 2 of the seven" in result.stderr
    )


def test_a_published_scorers_score_stands_beside_exact_match(sets: Path) -> None:
    out = sets.parent / "base.json"
    result = ask(sets, "--per-set", 1, "--scorer", "slime", "--out", out)
    heading = next(line for line in result.stdout.splitlines() if " EM " in line)
    assert heading.split() == ["set", "n", "EM", "slime", "F1", "searches", "tokens"]
    assert max(map(len, result.stdout.splitlines())) <= 80
    noted, _, _ = result.stderr.partition("evaluate ")
    assert "note: the scorer slime would pay a well-formed right answer 0, not 1" in noted
    suite = json.loads(out.read_text())
    assert suite["sets"]["nq"]["score_slime"]["n"] == 1
    assert suite["score_slime"]["n"] == 2


def test_the_order_of_a_file_does_not_change_a_subset_nor_what_is_drawn(sets: Path) -> None:
    def records(out: str) -> list[dict[str, object]]:
        ask(sets, "--per-set", 3, "--samples", 2, "--out", sets.parent / out)
        return json.loads((sets.parent / out.replace(".json", "@nq.json")).read_text())["records"]

    first = records("one.json")
    file = sets / "nq" / "test.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    assert records("two.json") == first
    assert len(first) == 6
    assert any(record["segments"] != other["segments"] for record, other in zip(first[::2], first[1::2], strict=True))


def test_the_keys_of_an_evaluation_file_are_frozen(sets: Path) -> None:
    shutil.copy(sets / "nq" / "test.jsonl", sets.parent / "q.jsonl")
    out = sets.parent / "out.json"
    questions = sets.parent / "q.jsonl"
    assert sleuth("eval", BASE, "--questions", questions, "--context", 100, "--out", out).exit_code == 0
    keys = ["name", "model", "model_sha256", "em", "searched", "searches_mean", "results_tokens_mean"]
    keys += ["well_formed", "response_tokens_mean", "missing", "outcomes"]
    assert list(json.loads(out.read_text())) == [*keys, "temperature", "protocol", "records"]
