"""`sleuth check scorer`: one line a case, or where scorers disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.answers.scorers import SCORERS

PROMPT = "Write <answer> and </answer>, such as <answer> Beijing </answer>.<|im_start|>assistant\n"
CASES = [
    {"id": "silent", "prompt": PROMPT, "response": "Hard to say.", "golden_answers": ["Beijing"]},
    {"id": 2, "prompt": PROMPT, "response": "<think>x</think><answer>[Paris]</answer>", "golden_answers": "Paris"},
    {"id": "3", "prompt": "", "response": "", "golden_answers": ["Paris", "paris"]},
]


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "cases.jsonl"
    file.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    return file


def test_json_is_one_line_a_case_with_every_scorer_and_nothing_else(cases: Path) -> None:
    lines = [json.loads(line) for line in sleuth("check", "scorer", cases, "--json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ["silent", 2, "3"]
    assert all(list(line) == ["id", "scores"] and list(line["scores"]) == list(SCORERS) for line in lines)
    assert lines[0]["scores"] == {
        "strict": 0.0, "search_r1": 1.0, "search_r1_format": 0.8, "slime": 1.0, "verl": 0.0, "skyrl": 0.0,
        "research": 0.0, "tinker": -0.1,
    }  # fmt: skip
    assert lines[1]["scores"]["strict"] == 1.0
    assert lines[2]["scores"]["research"] is None


def test_the_table_shows_one_case_of_each_kind_of_disagreement(cases: Path) -> None:
    result = sleuth("check", "scorer", cases)
    assert result.exit_code == 0
    for said in ("the policy's last turn", "silent: strict 0, search_r1 1,", "[Paris]"):
        assert said in result.stdout


def test_cases_on_which_all_scorers_agree_are_reported(cases: Path) -> None:
    cases.write_text(json.dumps(CASES[0] | {"response": "Answer: Rome", "golden_answers": ["Paris"], "prompt": ""}))
    assert "all scorers agree on all 1 cases" in sleuth("check", "scorer", cases).stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"response": None}, "cases.jsonl:1: `response` should be a string, found NoneType"),
        ({"golden_answers": []}, "cases.jsonl:1: `golden_answers` should be a list of strings"),
        ({"golden_answers": [3]}, "cases.jsonl:1: `golden_answers` should be a string, found int"),
        ({"id": None}, "cases.jsonl:1: `id` should be a string or a whole number"),
    ],
)
def test_a_malformed_case_is_one_line_with_its_place_and_nothing_is_scored(
    cases: Path, change: dict, said: str
) -> None:
    cases.write_text(json.dumps(CASES[0] | change))
    for options in ([], ["--json"]):
        result = sleuth("check", "scorer", cases, *options)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert said in result.stderr


def test_a_file_without_cases_is_one_line(cases: Path) -> None:
    assert "name either a file of cases, CASES.jsonl" in sleuth("check", "scorer").stderr
    assert "nowhere.jsonl: no such file" in sleuth("check", "scorer", cases.parent / "nowhere.jsonl").stderr
    cases.write_text("")
    assert "no cases in this file" in sleuth("check", "scorer", cases).stderr
