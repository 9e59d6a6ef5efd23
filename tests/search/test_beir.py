from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.search.beir import is_beir, load_beir
from sleuth.types import SleuthError, Task

QUERIES = {"q1": "where was Ada Voss born?", "q2": " what is Tarn? ", "q3": "who wrote?"}
QRELS = "query-id\tcorpus-id\tscore\nq2\t4\t1\nq1\t17\t2\nq1\t9\t0\nq1\t17\t1\nq1\t8\t1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = ({"_id": name, "text": text, "metadata": {}} for name, text in QUERIES.items())
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def test_judged_queries_are_tasks_whose_gold_passages_have_positive_scores(folder: Path) -> None:
    assert is_beir(folder)
    assert load_beir(folder) == [
        Task(id="q2", question="what is Tarn?", golden_answers=(), gold_passages=("4",)),
        Task(id="q1", question="where was Ada Voss born?", golden_answers=(), gold_passages=("17", "8")),
    ]


def test_another_split_is_named_by_its_table(folder: Path) -> None:
    table = folder / "qrels" / "dev.tsv"
    table.write_bytes(b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq3\t9\t0\r\n\r\n")
    assert is_beir(table)
    assert load_beir(table) == [Task(id="q3", question="who wrote?", golden_answers=())]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("qrels/test.tsv", "q1 17 1\n", "{}:1: expected query-id, corpus-id and score, separated by tabs"),
        ("qrels/test.tsv", "q1\t17\t1\t1\n", "{}:1: expected query-id, corpus-id and score, separated by tabs"),
        ("qrels/test.tsv", f"{QRELS}q1\t\t1\n", "{}:7: expected query-id, corpus-id and score, separated by tabs"),
        ("qrels/test.tsv", "\nq1\t17\tyes\n", "{}:2: score 'yes': expected a whole number, such as 1"),
        ("qrels/test.tsv", "q1\t17\t0.5\n", "{}:1: score '0.5': expected a whole number, such as 1"),
        ("qrels/test.tsv", "q7\t17\t1\n", "{}:1: there is no query 'q7' in {folder}/queries.jsonl"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "{}: no judgements in this file"),
        ("qrels/test.tsv", "q1\t\udcff\t1\n", "{}:1: not UTF-8 text"),
        ("queries.jsonl", '{"id": "q1", "text": "a"}', "{}:1: no `_id`; the row has id, text"),
        ("queries.jsonl", '{"_id": 1, "text": "a"}', "{}:1: `_id` should be a string, found int"),
        ("queries.jsonl", '{"_id": "q1", "text": " "}', "{}:1: `text` is empty"),
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "a"}\n' * 2,
            "{}:2: id 'q1' was used by an earlier query; ids should be unique",
        ),
        ("queries.jsonl", "{", "{}:1: not JSON (Expecting property name enclosed in double quotes, column 2)"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(folder: Path, name: str, content: str, line: str) -> None:
    (folder / name).write_text(content, errors="surrogateescape")
    with pytest.raises(SleuthError) as refused:
        load_beir(folder)
    assert str(refused.value) == line.replace("{}", str(folder / name)).replace("{folder}", str(folder))


@pytest.mark.parametrize("name", ["queries.jsonl", "qrels/test.tsv"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(SleuthError, match=f"{folder / name}: no such file"):
        load_beir(folder)


def test_a_line_without_an_end_is_not_read_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_MAX_ROW_MB", "1")
    (folder / "qrels" / "test.tsv").write_text(QRELS + "x" * 1_000_002)
    with pytest.raises(SleuthError, match=r"test\.tsv:7: the line is larger than 1 MB"):
        load_beir(folder)
