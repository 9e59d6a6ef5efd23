"""`sleuth check corpus`: the share of questions whose answers and titles a corpus has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

PASSAGES = [
    {"id": "1", "contents": '"Ada Voss"\nAda Voss, of the town Tarn, wrote 14 novels.'},
    {"id": "2", "contents": '"New Tarn"\nA harbour by the Gulf of Ost.'},
]
QUESTIONS = [
    {"id": "a", "question": "where?", "golden_answers": ["Osmark", "The Gulf of Ost"], "gold_ids": ["2"]},
    {"id": "b", "question": "who?", "golden_answers": ["Ada Vos"], "gold_ids": ["1", "7"]},
    {"id": "c", "question": "is it?", "golden_answers": ["yes"], "supporting_titles": ["new_tarn", "Ada Voss"]},
    {
        "id": "d",
        "question": "how many?",
        "golden_answers": ["14"],
        "metadata": {"supporting_facts": {"title": ["Ada Voss", "Moor"], "sent_id": [0, 1]}},
    },
]


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def checked(folder: Path, questions: list[dict], *options: str) -> str:
    corpus, asked = written(folder / "corpus.jsonl", PASSAGES), written(folder / "questions.jsonl", questions)
    return sleuth("check", "corpus", corpus, "--against", asked, *options).stdout


def test_questions_are_counted_by_what_the_corpus_has_of_them(tmp_path: Path) -> None:
    found = json.loads(checked(tmp_path, QUESTIONS, "--json"))
    assert (found["passages"], found["questions"], found["unsearchable"]) == (2, 4, 1)
    assert {name: (found[name]["value"], found[name]["n"]) for name in ("answers", "titles", "gold")} == {
        "answers": (pytest.approx(2 / 3), 3),  # "Ada Vos" is in no passage: words are compared, not letters
        "titles": (0.5, 2),
        "gold": (0.5, 2),
    }
    assert 0 < found["answers"]["low"] < 2 / 3 < found["answers"]["high"] < 1
    assert found["missing"] == ["who?"]
    assert checked(tmp_path, QUESTIONS).splitlines()[-1] == "  who?"


def test_what_no_question_names_is_missing_and_not_zero(tmp_path: Path) -> None:
    question = {"id": "a", "question": "where?", "golden_answers": ["Tarn"]}
    found = json.loads(checked(tmp_path, [question], "--json"))
    assert found["answers"]["value"] == 1
    assert found["titles"] == found["gold"] == {"value": None, "low": None, "high": None, "n": 0}
