"""Search-R1's parquet and its rewrites: one question, however it is laid out, is one task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from sleuth.data.questions import columns_of, load_questions, task_from_row
from sleuth.data.rows import read_rows, rows_and_faults, valid_row
from sleuth.types import SleuthError, Task

MESSAGE = "Think, search, then answer. Question: where was Ada Voss born?\n"
TRUTH = {"style": "rule", "ground_truth": {"target": ["Tarn", "Tarn City"]}}
INFO = {"index": 0, "question": "where was Ada Voss born?", "split": "train"}
SEARCH_R1: dict[str, Any] = {
    "id": "train_0",
    "question": "where was Ada Voss born?",
    "golden_answers": ["Tarn", "Tarn City"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": MESSAGE}],
    "ability": "fact-reasoning",
    "reward_model": TRUTH,
    "extra_info": {"split": "train", "index": 0},
}
VERL: dict[str, Any] = {
    "data_source": "searchR1_nq",
    "prompt": [{"role": "system", "content": "Help."}, {"role": "user", "content": MESSAGE}],
    "reward_model": TRUTH,
    "extra_info": INFO,
}
SKYRL: dict[str, Any] = {key: VERL[key] for key in ("data_source", "prompt", "extra_info")} | {
    "env_class": "search",
    "reward_spec": TRUTH,
}
ADA = Task(id="nq/train_0", question="where was Ada Voss born?", golden_answers=("Tarn", "Tarn City"), source="nq")


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def test_a_row_of_search_r1_is_a_task_of_its_source(tmp_path: Path) -> None:
    [task] = load_questions(parquet(tmp_path / "train.parquet", SEARCH_R1))
    assert replace(task, info={}) == ADA
    assert task.info == {key: SEARCH_R1[key] for key in ("ability", "reward_model", "extra_info")}


@pytest.mark.parametrize("row", [VERL, SKYRL])
def test_a_rewritten_row_is_the_same_question_named_after_its_place(tmp_path: Path, row: dict[str, Any]) -> None:
    [task] = load_questions(parquet(tmp_path / "train.parquet", row))
    assert task.id == "nq/row_1"
    assert (task.question, task.golden_answers, task.source) == (ADA.question, ADA.golden_answers, "nq")


def test_rows_of_two_sources_that_share_id_and_index_are_two_questions(tmp_path: Path) -> None:
    both = SEARCH_R1, SEARCH_R1 | {"data_source": "hotpotqa", "question": "who wrote it?"}
    tasks = load_questions(parquet(tmp_path / "train.parquet", *both))
    assert [task.id for task in tasks] == ["nq/train_0", "hotpotqa/train_0"]
    rewritten = VERL, VERL | {"data_source": "searchR1_hotpotqa"}
    assert len({task.id for task in load_questions(parquet(tmp_path / "verl.parquet", *rewritten))}) == 2


def test_the_prompt_can_be_taken_from_the_row_byte_for_byte(tmp_path: Path) -> None:
    path = parquet(tmp_path / "train.parquet", SEARCH_R1)
    [task] = load_questions(path, with_prompt=True)
    assert (task.prompt, task.question) == (MESSAGE, ADA.question)
    [plain] = load_questions(path)
    assert (plain.prompt, plain.question) == ("", ADA.question)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (VERL["prompt"], "f:1: `prompt` should be one user message, found system, user; "),
        ([], "f:1: `prompt` should be one user message, found none"),
        ("Where?", "f:1: `prompt` should be a list of messages such as"),
        ([{"role": "user", "content": " "}], "f:1: `prompt.content` is empty"),
    ],
)
def test_a_prompt_that_is_no_single_user_message_is_refused(prompt: object, message: str) -> None:
    with pytest.raises(SleuthError) as caught:
        task_from_row(SEARCH_R1 | {"prompt": prompt}, "f:1", with_prompt=True)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra_info": {"index": 0}}, "f:1: no `question`, neither as a column nor in `extra_info`"),
        ({"extra_info": INFO | {"question": 7}}, "f:1: `extra_info.question` should be a string, found int"),
        ({"reward_model": {"style": "rule"}}, "f:1: no `golden_answers`, and no `reward_model` of the form"),
        ({"reward_model": {"ground_truth": {"target": []}}}, "f:1: `golden_answers` is empty; expected a list"),
    ],
)
def test_a_malformed_row_says_what_is_missing(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SleuthError) as caught:
        task_from_row(VERL | change, "f:1")
    assert str(caught.value).startswith(message)


def test_of_a_parquet_file_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    path = parquet(tmp_path / "train.parquet", SEARCH_R1)
    _, row = next(read_rows(path, columns_of()))
    assert row.keys() == {"id", "question", "golden_answers", "data_source", "reward_model", "prompt"}
    assert row["reward_model"].keys() == {"ground_truth"}
    [(_, row)] = rows_and_faults(path, without="prompt")
    assert valid_row(row).keys() == SEARCH_R1.keys() - {"prompt"}
