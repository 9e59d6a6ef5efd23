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


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / "corpus.jsonl", PASSAGES), written(tmp_path / "questions.jsonl", QUESTIONS)


def test_questions_are_counted_by_what_the_corpus_has_of_them(files: tuple[Path, Path]) -> None:
    corpus, questions = files
    found = json.loads(sleuth("check", "corpus", corpus, "--against", questions, "--json").stdout)
    assert (found["passages"], found["questions"], found["unsearchable"]) == (2, 4, 1)
    assert {name: (found[name]["value"], found[name]["n"]) for name in ("answers", "titles", "gold")} == {
        "answers": (pytest.approx(2 / 3), 3),  # "Ada Vos" is in no passage: words are compared, not letters
        "titles": (0.5, 2),
        "gold": (0.5, 2),
    }
    assert 0 < found["answers"]["low"] < 2 / 3 < found["answers"]["high"] < 1
    assert found["missing"] == ["who?"]


def test_the_text_names_the_shares_and_a_question_without_an_answer(files: tuple[Path, Path]) -> None:
    corpus, questions = files
    shown = sleuth("check", "corpus", corpus, "--against", questions).stdout
    for part in ("2 passages, 4 questions", "an answer", "0.667", "all supporting titles", "left out of the first: 1"):
        assert part in shown
    assert shown.splitlines()[-1] == "  who?"


def test_what_no_question_names_is_missing_and_not_zero(files: tuple[Path, Path]) -> None:
    corpus, questions = files
    written(questions, [{"id": "a", "question": "where?", "golden_answers": ["Tarn"]}])
    found = json.loads(sleuth("check", "corpus", corpus, "--against", questions, "--json").stdout)
    assert found["answers"]["value"] == 1
    assert found["titles"] == found["gold"] == {"value": None, "low": None, "high": None, "n": 0}
