"""Rows to refine, made of what was played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sleuth.cite.episode_rows import accepted_rows, is_accepted, rows_of_searches
from sleuth.cite.rows import row_of
from sleuth.data.questions import task_from_row
from sleuth.dialect import DIALECTS
from sleuth.types import Action, Episode, Passage, Score, Segment, Task, Trajectory

DIALECT = DIALECTS["sleuth"]
BOOK = Passage(id="17", title="The Silent Harbor", text="The Silent Harbor was written by Ada Voss.")
LIFE = Passage(id="4", title="Ada Voss", text="Ada Voss was born in Tarn.")
TASK = Task(id="q1", question="where was its author born?", golden_answers=("Tarn", "Ulm"), kind="two_hop")
NONE = Score(value=0.0)


def episode(*turns: tuple[str, Action], task: Task = TASK, sample: int = 0, stories: int = 1) -> Episode:
    """Turns of the policy, each with what it was understood to be."""
    segments = (Segment(author="env", tokens=(), text="Question\n"),)
    for text, action in turns:
        shown = "".join(passage.text for passage in action.passages)
        segments += (Segment(author="policy", tokens=(), text=text), Segment(author="env", tokens=(), text=shown))
    story = Trajectory(segments=segments, actions=tuple(action for _, action in turns), stop="answered")
    return Episode(task=task, sample=sample, trajectories=(story,) * stories)


def search(query: str, *found: Passage) -> Action:
    return Action(kind="search", text=query, passages=found)


ANSWER = ("<answer> Tarn</answer>", Action(kind="answer", text="Tarn"))


def test_every_search_that_found_something_is_a_row_with_what_was_thought_before_it() -> None:
    played = episode(
        ("<think> author of The Silent Harbor</think><search> Harbor</search>", search("Harbor", BOOK, LIFE)),
        ("<search> Ada Voss</search>", search("Ada Voss", LIFE)),
        ("<search> nobody</search>", search("nobody")),
        ANSWER,
    )
    first, second = rows_of_searches([(played, NONE)], DIALECT)
    assert (first["id"], second["id"]) == ("q1/0/0", "q1/0/1")
    assert first["reasoning"] == "author of The Silent Harbor"
    assert second["reasoning"] == "I search for: Ada Voss"
    task = task_from_row(first, "rows.jsonl:1")
    assert (task.question, task.golden_answers, task.kind) == (TASK.question, ("Tarn",), "two_hop")
    assert task.evidence is not None
    assert {snippet.id: snippet.text for snippet in task.evidence.snippets} == {
        "17": f"{BOOK.title} | {BOOK.text}",
        "4": f"{LIFE.title} | {LIFE.text}",
    }
    assert task.evidence.answerable is None


def test_ids_that_cannot_be_cited_become_ranks() -> None:
    spaced = replace(BOOK, id="The Silent Harbor")
    [row] = rows_of_searches([(episode(("<search>a</search>", search("a", spaced, LIFE))), NONE)], DIALECT)
    assert "<snippet id=1>" in row["tool_output"]
    assert "<snippet id=2>" in row["tool_output"]


def test_a_story_that_a_template_told_anew_is_left_out() -> None:
    played = episode(("<search>a</search>", search("a", LIFE)), stories=2)
    assert rows_of_searches([(played, NONE)], DIALECT) == []


GOOD = {"well_formed": 1.0, "citation_f1": 0.9, "grounded": 1.0, "claims": 1.0}


@pytest.mark.parametrize(
    ("parts", "accepted"),
    [
        (GOOD, True),
        (GOOD | {"citation_f1": 0.7}, False),
        (GOOD | {"well_formed": 0.0}, False),
        (GOOD | {"grounded": 0.0}, False),
        ({key: value for key, value in GOOD.items() if key != "grounded"}, True),  # nobody knows what is right
        ({"well_formed": 1.0, "right_abstention": 1.0, "grounded": 1.0}, True),
        ({"well_formed": 1.0, "right_abstention": 0.0, "citation_f1": 0.0, "grounded": 0.0}, False),
    ],
)
def test_what_is_accepted(parts: dict[str, float], accepted: bool) -> None:
    assert is_accepted(Score(value=0.5, parts=parts), 0.8) == accepted
    assert not is_accepted(Score(value=None, parts=parts), 0.8)


ROW: dict[str, Any] = {
    "id": "r1",
    "question": "where was Ada Voss born?",
    "reasoning": "I need her birthplace.",
    "tool_output": "<snippet id=a>Ada Voss was born in Tarn.</snippet>",
    "answerable": True,
    "golden_answers": ["Tarn"],
    "rubrics": {"positive_rubrics": [{"title": "T", "description": "Names Tarn."}], "negative_rubrics": []},
    "support": [{"claim": "Ada Voss was born in Tarn.", "snippets": ["a"], "asked": True}],
    "type": "one_hop",
    "data_source": "world",
}


def test_the_best_accepted_answer_of_a_task_becomes_its_rows_own() -> None:
    task = task_from_row(ROW, "rows.jsonl:1")
    texts = ["<answer>one</answer>", "<answer>two</answer>", "<answer>three</answer>"]
    played = [episode((text, Action(kind="answer", text="x")), task=task, sample=at) for at, text in enumerate(texts)]
    values = (
        Score(value=0.9, parts=GOOD),
        Score(value=1.0, parts=GOOD),
        Score(value=2.0, parts=GOOD | {"grounded": 0}),
    )
    [row] = accepted_rows(list(zip(played, values, strict=True)), 0.8)
    assert row["answer"] == "<answer>two</answer>"
    assert task_from_row(row, "rows.jsonl:1") == replace(task, reference="<answer>two</answer>")
    assert accepted_rows([(played[2], values[2])], 0.8) == []


def test_a_task_as_a_row_is_the_task_again() -> None:
    task = task_from_row(ROW | {"answer": "<answer>x</answer>"}, "rows.jsonl:1")
    assert task_from_row(row_of(task), "rows.jsonl:1") == task
