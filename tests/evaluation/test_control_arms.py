"""Evaluate stages of one model in the dialect of the reader: as it is, and the control arms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STAGE = """
[[stage]]
kind = "evaluate"
name = "{name}"
context = 600
data = {{ questions = "{world}/qa_test.jsonl", limit = 4 }}
env = {{ kind = "search", dialect = "reading", prompt = "reading", {env} }}
"""
ARMS = {
    "trained": 'index = "{world}/index"',
    "closed_book": "closed_book = true",
    "empty": 'retriever = "empty"',
    "shuffled": 'index = "{world}/index", retriever = "shuffled"',
}


def test_control_arms_are_recorded_and_have_the_figures_of_citing(
    world: Path, tmp_path: Path, run: Callable[..., Path]
) -> None:
    stages = (STAGE.format(name=name, world=world, env=env.format(world=world)) for name, env in ARMS.items())
    text = f'name = "arms"\nmodel = "{ROOT / "models" / "tiny-base"}"\n' + "".join(stages)
    (tmp_path / "arms.toml").write_text(text)
    run(tmp_path / "arms.toml", tmp_path / "run")
    arms = {name: json.loads((tmp_path / "run" / "eval" / f"{name}.json").read_text()) for name in ARMS}
    for contents in arms.values():
        answers = [record for record in contents["records"] if record["note"] in ("correct", "wrong")]
        assert contents["cites"]["n"] == len(answers) == sum("cites" in record for record in contents["records"])
        assert contents["cited_holds_answer"]["n"] == sum(record["em"] for record in answers)
        assert contents["cited_gold"]["n"] == sum(record["em"] for record in answers if record["gold_passages"])
    closed = arms["closed_book"]
    assert [name for name, one in arms.items() if one["protocol"].get("closed_book")] == ["closed_book"]
    assert closed["protocol"]["hash"] != arms["trained"]["protocol"]["hash"]
    assert closed["protocol"]["corpus_sha256"] is None
    assert_answers_are_read_without_a_passage(closed)


def assert_answers_are_read_without_a_passage(closed: dict[str, Any]) -> None:
    for record in closed["records"]:
        *_, opening, turn = record["segments"]
        assert (opening["author"], opening["text"], turn["author"]) == ("env", "<answer>", "policy")
        assert not any(action["passages"] for action in record["actions"])
        if turn["text"].endswith("</answer>"):
            assert record["note"] in ("correct", "wrong")
    assert closed["outcomes"].keys() & {"correct", "wrong"}
    assert closed["cites"]["value"] == 0.0
