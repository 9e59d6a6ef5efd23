"""Tool outputs of a world contain distractors, and their table of support is exact."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sleuth.cite.claims import tagged
from sleuth.cite.world_tool_outputs import ToolOutputs
from sleuth.data.questions import load_questions, task_from_row
from sleuth.judges.lexical import support
from sleuth.world.facts import World, make_world
from sleuth.world.library import Library
from sleuth.world.names import split_of
from sleuth.world.questions import Question
from sleuth.world.write_world import draw_questions, write_world

Case = tuple[Question, dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(3, 400)


@pytest.fixture(scope="module")
def cases(world: World) -> list[Case]:
    """Questions, each with its row."""
    rng = random.Random(5)
    library = Library(world, random.Random(4))
    outputs = ToolOutputs(world, library, "train", rng)
    drawn = islice(draw_questions(world, library, "train", rng), 200)
    return [(question, outputs.row(question, id=str(at))) for at, question in enumerate(drawn)]


def snippets(row: dict[str, Any]) -> dict[str, str]:
    task = task_from_row(row, "row")
    assert task.evidence is not None
    return {snippet.id: snippet.text for snippet in task.evidence.snippets}


def test_the_answer_of_a_row_cites_for_each_hop_a_snippet_that_states_it(cases: list[Case]) -> None:
    for question, row in cases:
        if row["answerable"]:
            claims = tagged(row["answer"]).claims
            assert len(claims) == len(question.hops)
            table = {entry["claim"]: entry["snippets"] for entry in row["support"] if entry["asked"]}
            for claim, hop in zip(claims, question.hops, strict=True):
                assert claim.ids[0] in table[claim.text]
                assert hop.subject in claim.text
                assert hop.value in snippets(row)[claim.ids[0]]
            assert row["golden_answers"] == [question.answer]


def test_an_unanswerable_question_lacks_the_fact_of_one_hop(cases: list[Case]) -> None:
    unanswered = [(question, row) for question, row in cases if not row["answerable"]]
    assert 30 < len(unanswered) < 75
    for question, row in unanswered:
        asked = [entry for entry in row["support"] if entry["asked"]]
        assert len(asked) < len(question.hops)
        assert (row["golden_answers"], tagged(row["answer"]).claims) == ([], ())


def test_every_claim_of_the_table_is_stated_by_its_snippets_and_by_no_other(cases: list[Case], world: World) -> None:
    """StatedClaim means that the snippet contains subject and value, and not as an outdated claim."""
    for _, row in cases:
        texts = snippets(row)
        for entry in row["support"]:
            words = entry["claim"].removesuffix(".").split()
            names = [word for word in words if word[0].isupper() or word.isdigit()]
            for id_ in entry["snippets"]:
                assert all(name in texts[id_] for name in names)
                assert "almanac" not in texts[id_]


def test_distractors_are_planted(cases: list[Case]) -> None:
    texts = [text for _, row in cases for text in snippets(row).values()]
    kinds = Counter("stale" if "almanac" in text else "broken" if text.endswith("...") else "told" for text in texts)
    assert kinds["stale"] > 50
    assert kinds["broken"] > 20
    others = [len(row["support"]) - sum(entry["asked"] for entry in row["support"]) for _, row in cases]
    assert sum(others) / len(others) > 2


def test_no_name_of_the_other_split_occurs(cases: list[Case], world: World) -> None:
    told = "\n".join(row["tool_output"] for _, row in cases)
    held_out = [name for name in (*world.works, *world.people, *world.firms) if split_of(name) == "test"]
    assert len(held_out) > 100
    assert not [name for name in held_out if name in told]


def test_the_lexical_judge_supports_no_claim_by_a_snippet_that_does_not_state_it(cases: list[Case]) -> None:
    wrong = [
        (entry["claim"], text)
        for _, row in cases
        for entry in row["support"]
        for id_, text in snippets(row).items()
        if id_ not in entry["snippets"] and support(entry["claim"], text).score
    ]
    assert wrong == []


def test_rows_are_written_with_the_questions_and_load_as_tasks(tmp_path: Path) -> None:
    write_world(tmp_path, seed=0, people=200)
    for split, count in (("train", 100), ("test", 50)):
        tasks = load_questions(tmp_path / f"refiner_{split}.jsonl")
        assert len(tasks) == count
        assert all(task.evidence is not None and task.reference for task in tasks)
    rows = [json.loads(line) for line in (tmp_path / "refiner_train.jsonl").read_text().splitlines()]
    assert {"claim", "snippets", "asked"} == rows[0]["support"][0].keys()
