"""`Task.info`: what a row has besides what Sleuth reads of it."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from verb import printed_json, sleuth, write_rows

from sleuth.answers.factory import require_answers
from sleuth.data.questions import load_questions, questions_hash, task_from_row
from sleuth.recipe.load import load_rewards
from sleuth.runs.rollouts import SCHEMA, read_rollouts, write_rollouts
from sleuth.types import Episode, Group, Info, SleuthError, Task, Trajectory

ROW: dict[str, Any] = {"id": "q7", "question": "where was Ada Voss born?", "golden_answers": ["Tarn"]}
MORE = {"level": 3, "sql": "select 1", "nested": {"a": ["x", None]}}


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_task_has_the_other_columns_of_its_row(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"q{ending}"
    rows = [ROW | MORE | {"prompt": [{"role": "user", "content": "Where?"}], "type": "one_hop", "gold_ids": ["4"]}]
    if ending == ".jsonl":
        write_rows(path, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    [task] = load_questions(path)
    assert task.info == MORE
    assert task.info["nested"]["a"] == ["x", None]


def test_what_a_layout_reads_whole_is_no_info_and_what_it_reads_in_part_is() -> None:
    row = {"data_source": "nq", "id": "1", "question": "who?", "golden_answers": ["Ada"], "ability": "fact"}
    row |= {"reward_model": {"ground_truth": {"target": ["Ada"]}}, "extra_info": {"index": 4, "sql": "select 2"}}
    assert dict(task_from_row(row, "f:1").info) == {
        "ability": "fact", "extra_info": row["extra_info"], "reward_model": row["reward_model"]
    }  # fmt: skip
    refiner = {"tool_output": "<snippet id=a>x</snippet>", "question": "who?", "answer": "Ada", "level": 1}
    assert dict(task_from_row(refiner, "f:1").info) == {"level": 1}
    two = {"question": "who?", "query": "a person", "answers": ["Ada"], "answer": "Ada Voss, a painter."}
    assert dict(task_from_row(two, "f:1").info) == {"query": "a person", "answer": "Ada Voss, a painter."}


def test_nothing_that_a_reader_does_changes_it_for_another() -> None:
    given = {"tags": ["a"]}
    task = Task(id="q", question="?", info=given)
    given["tags"].append("b")
    task.info["tags"].append("c")
    assert task.info == {"tags": ["a"]}
    assert isinstance(task.info, Mapping)
    with pytest.raises(TypeError):
        task.info["tags"] = []  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        task.info = Info({})  # type: ignore[misc]
    for same in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task), Task(id="q", question="?", info=task.info)):
        assert (same, hash(same)) == (task, hash(task))


def test_other_values_than_those_of_json_become_such() -> None:
    day = datetime.date(2026, 11, 27)
    task = task_from_row(ROW | {"day": day, "nan": float("nan"), "picture": b"\xff", "odd": "\ud800"}, "f:1")
    assert task.info == {"day": "2026-11-27", "nan": None, "picture": None, "odd": "\ud800"}
    json.dumps(dict(task.info), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "why"),
    [("x" * 2**20, "characters of JSON, and a row may have 1,048,576"), ({1: 1, "a": 2}, "no JSON: '<' not supported")],
)
def test_what_no_row_may_hold_is_a_line_that_names_file_and_columns(value: object, why: str) -> None:
    with pytest.raises(SleuthError) as caught:
        task_from_row(ROW | {"level": value}, "f.jsonl:3")
    assert str(caught.value).startswith("f.jsonl:3: level: ")
    assert why in str(caught.value)


def test_rollouts_bring_it_back_and_files_from_before_have_none(tmp_path: Path) -> None:
    task = task_from_row(ROW | MORE, "f:1")
    episode = Episode(task=task, sample=0, trajectories=(Trajectory(segments=()),))
    group = Group(task=task, episodes=(episode,))
    write_rollouts(tmp_path / "r.parquet", [group], [[None]])
    assert read_rollouts(tmp_path / "r.parquet") == [group]
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.schema.names == [name for name in SCHEMA.names if name != "own_score"]
    assert json.loads(table["info"][0].as_py()) == MORE
    pyarrow.parquet.write_table(table.drop_columns("info"), tmp_path / "before.parquet")
    [before] = read_rollouts(tmp_path / "before.parquet")
    assert before.task == task_from_row(ROW, "f:1")


def test_questions_with_another_info_are_others_and_those_without_have_the_hash_that_they_had() -> None:
    plain, one, two = (task_from_row(ROW | more, "f:1") for more in ({}, {"level": 1}, {"level": 2}))
    assert questions_hash([plain]) == "8d314c5943423cbc67587eadc8f987a3c19998b9331f033389797c6392880a98"
    assert len({questions_hash([task]) for task in (plain, one, two)}) == 3


def test_only_rewards_of_ones_own_and_of_form_do_without_golden_answers(tmp_path: Path) -> None:
    tasks = [Task(id="q7", question="who?", info={"golden_answer": "Ada", "level": 1})]
    file = tmp_path / "reward.toml"
    own = "[[reward]]\nkind = 'python'\nfunction = 'a:b'\n[[reward]]\nkind = 'format'\n"
    file.write_text(own)
    require_answers(load_rewards(file).reward, tasks)
    file.write_text(own + "[[reward]]\nkind = 'token_f1'\n")
    for rewards, needs in (
        (load_rewards(file).reward, "the token_f1 reward needs them"),
        ((), "exact match needs them"),
    ):
        with pytest.raises(SleuthError) as caught:
            require_answers(rewards, tasks)
        assert str(caught.value) == (
            f"question 'q7' has no golden_answers, and {needs}; expected a list such as [\"Tarn\"], or an `answer`; "
            "its other columns are golden_answer, level"
        )


def test_check_data_names_the_columns_that_only_own_code_reads_and_rows_without_answers(tmp_path: Path) -> None:
    rows = [ROW | {"level": 1}, ROW | {"id": "q8", "question": "Who?", "level": 2, "sql": ""}]
    rows += [{"id": "q9", "question": "What?"}]
    path = write_rows(tmp_path / "q.jsonl", rows)
    result = sleuth("check", "data", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-3:] == [
        "no golden answers, which only rewards of your own accept: 1",
        f"  {path}:3: question 'q9'",
        "columns that only code of your own reads, as task.info: level (2), sql (1)",
    ]
    assert printed_json("check", "data", path)["info"] == {"level": 2, "sql": 1}
