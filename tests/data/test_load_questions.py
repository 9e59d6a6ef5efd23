from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sleuth.data.questions import load_questions, questions_hash, task_from_row
from sleuth.types import SleuthError, Task

ROW: dict[str, Any] = {"id": "q7", "question": "where was Ada Voss born?", "golden_answers": ["Tarn", "Tarn City"]}
REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_row_becomes_a_task(tmp_path: Path) -> None:
    full = ROW | {"gold_ids": ["17", "4"], "type": "two_hop", "data_source": "world"}
    assert load_questions(written(tmp_path / "q.jsonl", full)) == [
        Task(
            id="q7",
            question="where was Ada Voss born?",
            golden_answers=("Tarn", "Tarn City"),
            gold_passages=("17", "4"),
            kind="two_hop",
            source="world",
        )
    ]


def test_the_criteria_of_a_question_are_read_and_hashed() -> None:
    task = task_from_row(
        ROW | {"rubrics": {"positive_rubrics": [{"title": "Place", "description": "Names Tarn."}]}}, "f"
    )
    assert [rubric.description for rubric in task.rubrics] == ["Names Tarn."]
    assert questions_hash([task]) != questions_hash([task_from_row(ROW, "f")])


@pytest.mark.parametrize("answers", ["Tarn", ["Tarn"], np.array(["Tarn"], dtype=object), np.array(["Tarn"])])
def test_answers_may_be_a_list_an_array_or_a_bare_string(answers: object) -> None:
    assert task_from_row(ROW | {"golden_answers": answers}, "f:1").golden_answers == ("Tarn",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "  "}, "`question` is empty"),
        ({"golden_answers": []}, '`golden_answers` is empty; expected a list of strings such as ["Tarn"]'),
        ({"golden_answers": [True]}, "`golden_answers` should be a string, found bool"),
        ({"golden_answers": {"a": 1}}, "`golden_answers` should be a list of strings, found dict"),
        ({"type": 3}, "`type` should be a string, found int"),
        ({"id": "q7"}, "id 'q7' was used by an earlier question; ids should be unique"),
    ],
)
def test_a_malformed_question_is_named_by_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "q.jsonl", ROW, ROW | {"id": "q8"} | change)
    with pytest.raises(SleuthError) as caught:
        load_questions(path)
    assert str(caught.value) == f"{path}:2: {message}"


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the checkout")
def test_real_questions_load_whole() -> None:
    tasks = load_questions(REAL_DATA / "qa_test.jsonl")
    assert len(tasks) == 1720
    assert all(task.golden_answers and task.gold_passages and task.kind and task.source for task in tasks)
    assert len(load_questions(REAL_DATA / "questions_multihop_train.jsonl.gz")) == 8297


def test_the_hash_is_the_one_it_always_was_and_tells_any_change_and_any_order() -> None:
    spelled = '["q7", "where was Ada Voss born?", ["Tarn", "Tarn City"], [], "", ""]\n'
    one, two = task_from_row(ROW, "f:1"), task_from_row(ROW | {"id": "q8"}, "f:2")
    assert questions_hash([one]) == hashlib.sha256(spelled.encode()).hexdigest()
    changed = [dataclasses.replace(one, golden_answers=("Tarn",)), two]
    prompted = [dataclasses.replace(one, prompt="Think."), two]
    assert len({questions_hash(tasks) for tasks in ([one, two], [two, one], [one], changed, prompted)}) == 5
