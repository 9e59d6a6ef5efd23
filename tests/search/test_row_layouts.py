"""Benchmarks in the layout of BEIR, and runs in that of TREC."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sleuth.search.rows import is_beir, load_beir, run_lines
from sleuth.types import Passage, SleuthError, Task

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
        ("qrels/test.tsv", "q1\t17\t1\n", "{}: no judgements in this file"),
        ("qrels/test.tsv", "q1\t17\t1\nq1\t8\t1\n", "{}:2: no `query-id`; the row has q1, 17, 1"),
        (
            "qrels/test.tsv",
            f"{QRELS}q1\t17\t1\t1\n",
            "{}:7: has 4 cells, and the first line names 3 columns; quote cells that hold commas",
        ),
        ("qrels/test.tsv", f"{QRELS}q1\t\t1\n", "{}:7: no `corpus-id`; the row has query-id, score"),
        ("qrels/test.tsv", f"{QRELS}q1\t17\t0.5\n", "{}:7: score '0.5': expected a whole number, such as 1"),
        ("qrels/test.tsv", f"{QRELS}q7\t17\t1\n", "{}:7: there is no query 'q7' in {folder}/queries.jsonl"),
        ("qrels/test.tsv", f"{QRELS}q1\t\udcff\t1\n", "{}: not UTF-8 text after line 1"),
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


def task(name: str) -> Task:
    return Task(id=name, question="where?", golden_answers=("Tarn",))


def passages(*scored: tuple[str, float]) -> list[Passage]:
    return [Passage(id=name, title="", text="", score=score) for name, score in scored]


def test_a_run_is_as_trec_eval_reads_it() -> None:
    lines = run_lines(
        [task("q7"), task("q8"), task("q9")], [passages(("17", 11.5), ("4", 2.0)), [], passages(("9", 0.25))], "a-tag"
    )
    assert list(lines) == ["q7 Q0 17 1 11.5 a-tag", "q7 Q0 4 2 2.0 a-tag", "q9 Q0 9 1 0.25 a-tag"]


def test_tied_passages_keep_their_order_for_tools_that_order_by_score_as_float32() -> None:
    nearly = 3.0 + 1e-12  # tied as float32
    for scores in ((nearly, 3.0, 3.0, 2.0), (0.0, 0.0, 0.0), (-1.0, -1.0), (1e-45, 0.0, 0.0)):
        found = passages(*((name, score) for name, score in zip("dcba", scores, strict=False)))
        columns = [line.split() for line in run_lines([task("q")], [found], "tag")]
        written = [np.float32(float(column[4])) for column in columns]
        assert [column[2] for column in columns] == [passage.id for passage in found]
        assert all(first > second for first, second in pairwise(written))
        assert written == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("name", ["a b", "a\tb", " a", "a\n", "a\u2003b"])
def test_an_id_with_white_space_is_refused(name: str) -> None:
    for tasks, found, noun in (([task(name)], [[]], "question"), ([task("q")], [passages((name, 1.0))], "passage")):
        with pytest.raises(SleuthError) as refused:
            list(run_lines(tasks, found, "tag"))
        assert str(refused.value).startswith(f"{noun} {name!r}: white space in an id")
