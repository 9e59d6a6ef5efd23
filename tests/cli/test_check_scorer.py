"""`sleuth check scorer`: one line a case, or where scorers disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import refusal, sleuth, write_rows

from sleuth.answers.scorers import SCORERS

PROMPT = "Write <answer> and </answer>, such as <answer> Beijing </answer>.<|im_start|>assistant\n"
CASES = [
    {"id": "silent", "prompt": PROMPT, "response": "Hard to say.", "golden_answers": ["Beijing"]},
    {"id": 2, "prompt": PROMPT, "response": "<think>x</think><answer>[Paris]</answer>", "golden_answers": "Paris"},
    {"id": "3", "prompt": "", "response": "", "golden_answers": ["Paris", "paris"]},
]


def test_every_scorer_scores_every_case_and_the_table_shows_where_they_disagree(tmp_path: Path) -> None:
    cases = write_rows(tmp_path / "cases.jsonl", CASES)
    lines = [json.loads(line) for line in sleuth("check", "scorer", cases, "--json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ["silent", 2, "3"]
    assert all(list(line) == ["id", "scores"] and list(line["scores"]) == list(SCORERS) for line in lines)
    assert lines[0]["scores"] == {
        "strict": 0.0, "search_r1": 1.0, "search_r1_format": 0.8, "slime": 1.0, "verl": 0.0, "skyrl": 0.0,
        "research": 0.0, "tinker": -0.1,
    }  # fmt: skip
    assert lines[1]["scores"]["strict"] == 1.0
    assert lines[2]["scores"]["research"] is None
    shown = sleuth("check", "scorer", cases).stdout
    for said in ("the policy's last turn", "disagree on 3 of 3 cases", "silent: strict 0, search_r1 1,"):
        assert said in shown
    write_rows(cases, [CASES[0] | {"response": "Answer: Rome", "golden_answers": ["Paris"], "prompt": ""}])
    assert "scorers disagree on 0 of 1 cases" in sleuth("check", "scorer", cases).stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"response": None}, "cases.jsonl:1: `response` should be a string, found NoneType"),
        ({"golden_answers": []}, "cases.jsonl:1: `golden_answers` should be a list of strings"),
        ({"golden_answers": [3]}, "cases.jsonl:1: `golden_answers` should be a string, found int"),
        ({"id": None}, "cases.jsonl:1: `id` should be a string or a whole number"),
        (None, "no cases in this file"),
    ],
)
def test_malformed_cases_are_one_line_with_their_place_and_nothing_is_scored(
    tmp_path: Path, change: dict | None, said: str
) -> None:
    cases = write_rows(tmp_path / "cases.jsonl", [] if change is None else [CASES[0] | change])
    assert said in refusal("check", "scorer", cases)
    assert said in refusal("check", "scorer", cases, "--json")
    assert "missing argument 'CASES.jsonl'" in refusal("check", "scorer")
