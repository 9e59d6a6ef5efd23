"""How the base failed, with a question of each mode and what a scorer read out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import write_run

from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import Transcript
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.paired import set_rows
from sleuth.report import write_report
from sleuth.report.figures import failure_arms, failure_rows

TEMPLATE = (
    "You may search as often as you need, and then give your answer inside <answer> and </answer>, without more words, "
    "such as <answer> Beijing </answer>. Question: "
)


def record(name: str, wrote: str, **more: Any) -> dict[str, Any]:
    """A wrong answer without a search."""
    asked = [{"author": "template", "text": TEMPLATE}, {"author": "env", "text": f"Who was {name}?\n"}]
    return {
        "id": name,
        "question": f"Who was {name}?",
        "golden_answers": ["Ada"],
        "em": 0.0,
        "score_slime": 0.0,
        "note": "no_answer",
        "answer": None,
        "searches": 0,
        "stop": "answered",
        "segments": [*asked, {"author": "policy", "text": wrote}],
        "actions": [],
    } | more


ECHO = "search as often as you need, and then give your answer inside <answer> and </answer>"
MEMORY = "<answer>Bo</answer>"


def test_each_failure_of_the_base_is_counted_and_shown_with_what_was_read_out_of_it() -> None:
    base = [
        record("one", MEMORY, answer="Bo", note="wrong"),
        record("two", "?"),
        record("three", ECHO, answer="and", note="wrong"),
    ]
    trained = [record("one", "<answer>Ada</answer>", em=1.0, score_slime=1.0, note="correct"), record("two", "?")]
    rows = failure_rows(failure_arms({"base": {"records": base}, "trained": {"records": trained}}))
    assert [(row.mode, row.counts) for row in rows] == [("never_searches", (2, 1)), ("echoes_prompt", (1, 0))]
    memory, echo = (row.example for row in rows)
    assert (memory.arm, memory.question, memory.wrote, memory.cut) == ("base", "Who was one?", MEMORY, False)
    assert [(one.scorer, one.answer) for one in memory.readings] == [("strict", "Bo"), ("slime", "Bo")]
    assert [(one.scorer, one.answer, one.score) for one in echo.readings] == [
        ("strict", "and", 0.0),
        ("slime", "and", 0.0),
    ]


def test_the_strict_scorer_reads_what_the_dialect_takes_for_the_answer() -> None:
    boxed = record("one", r"<answer>It is \boxed{Bo}.</answer>", answer="Bo", note="wrong")
    unfinished = record("two", "<answer>Bo</answer> and", answer="Bo", note="malformed", stop="turns", searches=1)
    for failed, answer in ((boxed, "Bo"), (unfinished, None)):
        [row] = failure_rows({"base": [failed]})
        assert (row.example.readings[0].scorer, row.example.readings[0].answer) == ("strict", answer)


@pytest.mark.parametrize(
    ("scorer", "answer"),
    [
        ("strict", "Bo"),
        ("search_r1", "Bo"),
        ("search_r1_format", "Bo"),
        ("slime", "Bo"),
        ("verl", "Bo"),
        ("skyrl", "Bo"),
        ("research", None),
        ("tinker", None),
    ],
)
def test_every_scorer_says_what_it_takes_for_the_answer(scorer: str, answer: str | None) -> None:
    said = Transcript(prompt=TEMPLATE + "<|im_start|>assistant\n", response=MEMORY, last_turn=MEMORY)
    assert SCORERS[scorer].read_answer(said) == answer
    boxed = r"<answer>It is \boxed{Bo}.</answer>"
    assert SCORERS["research"].read_answer(Transcript(prompt="Assistant:", response=boxed, last_turn=boxed)) == "Bo"
    assert SCORERS["tinker"].read_answer(Transcript(prompt="", response="", last_turn="So. Answer: Bo")) == "Bo"


def test_the_page_of_a_suite_has_its_failures_and_each_set_under_both_scorers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2, rollout_steps=())
    share = Measured(value=0.5, low=0.4, high=0.6, n=2).as_json()
    for name, wrote in (("base", ECHO), ("trained", MEMORY)):
        figures = {"em": share, "score_slime": share}
        suite = {"name": name, "model": name, **figures, "sets": {"nq": {"questions": 2, **figures}}, "outcomes": {}}
        one = {"name": f"{name}@nq", "set": {}, "records": [record("<b>x</b>", wrote), record("two", wrote)]}
        (run / "eval" / f"{name}.json").write_text(json.dumps(suite))
        (run / "eval" / f"{name}@nq.json").write_text(json.dumps(one))
    html = write_report(run).read_text(encoding="utf-8")
    assert 'id="failures"' in html
    assert "Echoes the prompt" in html
    assert "reads <q>and</q>" in html
    assert "Who was &lt;b&gt;x&lt;/b&gt;?" in html
    assert "By test set" in html
    assert "nq<code>score_slime</code>" in html


def test_a_set_has_its_difference_question_by_question() -> None:
    share = Measured(value=0.5, low=0.4, high=0.6, n=2).as_json()
    evaluations: dict[str, Any] = {name: {"sets": {"nq": {"em": share}}} for name in ("base", "trained")}
    evaluations["base@nq"] = {"set": {}, "records": [record("one", MEMORY), record("two", MEMORY)]}
    evaluations["trained@nq"] = {"set": {}, "records": [record("one", MEMORY, em=1.0), record("two", MEMORY)]}
    [(name, row)] = set_rows(evaluations)
    assert (name, row.key, row.measured["base"]) == ("nq", "em", Measured(value=0.5, low=0.4, high=0.6, n=2))
    assert row.difference is not None
    assert row.difference.value == 0.5
    assert set_rows({"base": {"em": share}}) == []
