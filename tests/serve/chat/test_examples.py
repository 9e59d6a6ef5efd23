"""Where the example questions of the page come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_agents import refiner

from sleuth.cite.dialect import REFINERS
from sleuth.data.questions import load_questions
from sleuth.dialect import DIALECTS
from sleuth.serve.agent import example_questions
from sleuth.types import Task

SEARCHER, REFINER = DIALECTS["sleuth"], REFINERS["answer_only"]
ASKED = [("a", "one_hop"), ("b", "one_hop"), ("c", "two_hop"), ("d", "one_hop")]


def record(question: str, kind: str) -> dict[str, Any]:
    return {"id": question, "question": question, "kind": kind, "golden_answers": ["Tarn"]}


def test_they_are_what_the_run_was_evaluated_with_and_of_different_kinds(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    for name, contents in {
        "a": "{damaged",
        "b": json.dumps({"records": [{"question": "no answers"}, record("a", "x") | {"kind": ["x"]}]}),
        "c": json.dumps({"records": [record(*asked) for asked in ASKED]}),
    }.items():
        (tmp_path / "eval" / f"{name}.json").write_text(contents)
    checkpoint = str(tmp_path / "checkpoints" / "step-000002")
    assert example_questions(checkpoint, SEARCHER, []) == ["a", "c", "b"]
    for elsewhere in (tmp_path / "models" / "model", tmp_path / "elsewhere" / "else" / "model", "/model", "/"):
        assert example_questions(str(elsewhere), SEARCHER, []) == []


def test_a_file_of_questions_comes_first(tmp_path: Path) -> None:
    rows = [{"id": asked, "question": asked, "golden_answers": ["x"], "type": kind} for asked, kind in ASKED]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert example_questions("models/tiny-base", SEARCHER, load_questions(tmp_path / "q.jsonl")) == ["a", "c", "b"]


def test_a_refiners_examples_hold_what_it_refines(tmp_path: Path) -> None:
    row = {
        "id": "1",
        "question": "Where was Ada Voss born?",
        "reasoning": "I need her birthplace.",
        "tool_output": "<snippet id=a1>Ada Voss was born in Tarn.</snippet>",
    }
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    [ours] = example_questions("models/tiny-base", REFINER, [])
    [theirs] = example_questions("models/tiny-base", REFINER, load_questions(tmp_path / "q.jsonl"))
    served = refiner(lambda text, sampling: "<answer></answer>")
    task = served.make_task(theirs, "messages")
    assert task.evidence is not None
    assert (task.question, task.evidence.reasoning) == (row["question"], row["reasoning"])
    assert [snippet.id for snippet in task.evidence.snippets] == ["a1"]
    assert served.make_task(ours, "messages").question == "Where was Ada Voss born?"
    without = Task(id="1", question="a", golden_answers=("x",))
    assert example_questions("models/tiny-base", REFINER, [without]) == [ours]
