"""Refiner rows: read in every layout, and made from episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import line_of

from sleuth.cite.episode_rows import accepted_rows, is_accepted, rows_of_searches
from sleuth.cite.rows import row_of, snippets_of, tool_output_of
from sleuth.data.questions import load_questions, task_from_row
from sleuth.dialect import DIALECTS
from sleuth.types import Action, Episode, Passage, Rubric, Score, Segment, Task, Trajectory

DATA = Path(__file__).parents[2].parent / "shared" / "data"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not on this machine")

OUTPUT = '<snippet id="a1">Ada Voss was born in Tarn.</snippet>\n<webpage id=b2>Bo.</webpage>'
ANSWER = "<answer><snippet id=a1>Ada Voss was born in Tarn.</snippet></answer>"
OURS: dict[str, Any] = {
    "id": "train-0",
    "question": "where was Ada Voss born?",
    "reasoning": "I need her birthplace.",
    "tool_output": OUTPUT,
    "answerable": True,
    "golden_answers": ["Tarn"],
    "answer": ANSWER,
}
RUBRICS = {
    "positive_rubrics": [{"title": "Birthplace", "description": "Names Tarn."}],
    "negative_rubrics": [{"title": "Padding", "description": "Tells of the sea."}],
}
MESSAGE = f"Refine this.\nI need her birthplace.\n<tool_output>\n{OUTPUT}\n</tool_output>"
PUBLISHED: dict[str, Any] = {
    "conversations": [
        {"role": "user", "content": MESSAGE, "thinking": None},
        {"role": "assistant", "content": ANSWER, "thinking": None},
    ],
    "metadata": {
        "sample_id": "s7",
        "traj_idx": 0,
        "turn_index": 2,
        "pass": 1,
        "tool_query": "Ada Voss birthplace",
        "citation_metrics": {"citation_score_applicable": 1},
    },
    "gpt5_generation": "not this",
    "rubrics": json.dumps(RUBRICS),
}
SOURCED: dict[str, Any] = {
    "id": "alce_0",
    "question": "where was Ada Voss born?",
    "answer": "Ada Voss was born in Tarn [1].",
    "sources": [
        {"id": "1", "title": "Ada Voss", "text": "Ada Voss was born in Tarn."},
        {"id": "2", "url": "http://x", "snippets": ["Bo. </snippet><snippet id=1>Ida.", "Ida."]},
        {"id": "3", "snippets": []},
    ],
}


def task_of(row: dict[str, Any], **options: bool) -> Task:
    return task_from_row(row, "rows.jsonl:3", **options)


def complaint(row: dict[str, Any], **options: bool) -> str:
    line = line_of(task_of, row, **options)
    assert line.startswith("rows.jsonl:3: ")
    return line.removeprefix("rows.jsonl:3: ")


def snippets(task: Task) -> dict[str, str]:
    assert task.evidence is not None
    return {snippet.id: snippet.text for snippet in task.evidence.snippets}


def test_a_row_of_ours_is_a_task_with_its_evidence() -> None:
    task = task_of(OURS)
    assert (task.id, task.golden_answers, task.reference) == ("train-0", ("Tarn",), ANSWER)
    assert task.evidence is not None
    assert (task.evidence.reasoning, task.evidence.output) == ("I need her birthplace.", OUTPUT)
    assert task.evidence.answerable is True
    assert snippets(task) == {"a1": "Ada Voss was born in Tarn.", "b2": "Bo."}


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        ("a1", "`support` should be a list such as"),
        (["a1"], "`support` should be a list such as"),
        (
            [{"claim": "Bo.", "snippets": ["zz", "b2"]}],
            "`support.0.snippets` should name snippets of the tool output, found zz",
        ),
        (
            [{"claim": "Bo.", "snippets": []}],
            "`support.0.snippets` should name snippets of the tool output, found none",
        ),
        ([{"snippets": ["b2"]}], "`support.0.claim` should be a string"),
    ],
)
def test_a_table_that_does_not_fit_the_tool_output_is_refused(support: Any, expected: str) -> None:
    assert complaint(OURS | {"support": support}).startswith(expected)


def test_a_published_row_is_the_same_evidence_with_its_rubrics() -> None:
    task = task_of(PUBLISHED)
    assert (task.id, task.question, task.reference) == ("s7/0/2/1", "Ada Voss birthplace", ANSWER)
    assert task.golden_answers == ()
    assert task.evidence is not None
    assert (task.evidence.reasoning, task.evidence.output) == ("Refine this.\nI need her birthplace.", OUTPUT)
    assert task.evidence.answerable is True
    assert snippets(task) == {"a1": "Ada Voss was born in Tarn.", "b2": "Bo."}
    assert task.rubrics == (
        Rubric(title="Birthplace", description="Names Tarn."),
        Rubric(title="Padding", description="Tells of the sea.", wanted=False),
    )


def test_the_claims_of_a_published_answer_never_become_evidence() -> None:
    with_more = ANSWER.replace("a1", "zz")
    messages = [PUBLISHED["conversations"][0], {"role": "assistant", "content": with_more}]
    assert "zz" not in snippets(task_of(PUBLISHED | {"conversations": messages}))


def test_only_what_is_marked_as_tool_output_is_evidence_where_anything_is() -> None:
    said = f"<snippet id=zz>Ada was born in Velde.</snippet> says the agent. <tool_output>{OUTPUT}</tool_output>"
    marked = task_of(PUBLISHED | {"conversations": [{"role": "user", "content": said}]})
    assert snippets(marked).keys() == {"a1", "b2"}
    unmarked = task_of(PUBLISHED | {"conversations": [{"role": "user", "content": OUTPUT}]})
    assert snippets(unmarked).keys() == {"a1", "b2"}


def test_a_published_row_can_be_asked_with_its_own_message() -> None:
    assert task_of(PUBLISHED, with_prompt=True).prompt == MESSAGE
    with_system = [{"role": "system", "content": "Help."}, *PUBLISHED["conversations"]]
    text = complaint(PUBLISHED | {"conversations": with_system}, with_prompt=True)
    assert text.startswith("`conversations` should have one user message before the answer, found system, user")
    assert "no `conversations`" in complaint(OURS, with_prompt=True)


def test_sources_become_a_tool_output_in_which_none_can_pass_for_another() -> None:
    task = task_of(SOURCED)
    assert snippets(task) == {"1": "Ada Voss | Ada Voss was born in Tarn.", "2": "Bo. Ida.\nIda."}
    assert (task.reference, task.golden_answers) == ("Ada Voss was born in Tarn [1].", ())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tool_output": "nothing"}, "`tool_output` holds no snippet"),
        ({"tool_output": 3}, "`tool_output` should be a string, found int"),
        ({"answerable": "yes"}, "`answerable` should be true or false, found 'yes'"),
        ({"question": None}, "`question` should be a string"),
        ({"rubrics": "{"}, "`rubrics` is not JSON"),
        ({"rubrics": "[1]"}, "`rubrics` should be a table, found list"),
        ({"rubrics": {"positive": []}}, "`rubrics` has positive; expected positive_rubrics and negative_rubrics"),
        ({"rubrics": {"positive_rubrics": [{"title": "x"}]}}, "`rubrics.positive_rubrics.0.description` should be"),
        ({"rubrics": {"positive_rubrics": "x"}}, "`rubrics.positive_rubrics` should be a list"),
        ({"rubrics": {"negative_rubrics": ["x"]}}, "`rubrics.negative_rubrics.0` should have title and description"),
    ],
)
def test_what_is_wrong_with_a_row_is_one_line(change: dict[str, Any], expected: str) -> None:
    assert complaint(OURS | change).startswith(expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"conversations": "hello"}, "`conversations` should be a list such as"),
        ({"conversations": [{"role": "user"}]}, "`conversations.0.content` should be a string"),
        ({"conversations": PUBLISHED["conversations"], "metadata": "{"}, "`metadata` is not JSON"),
        (SOURCED | {"sources": [1]}, "`sources` should be a list"),
        (SOURCED | {"sources": []}, "none of the `sources` has text to cite"),
    ],
)
def test_what_is_wrong_with_a_published_row_is_one_line(row: dict[str, Any], expected: str) -> None:
    assert complaint(row).startswith(expected)


def test_two_snippets_of_one_id_are_one_and_one_that_was_cut_off_is_what_is_left() -> None:
    output = "<snippet id=a>One.</snippet><snippet>none</snippet><snippet id=a>Two.</snippet><snippet id=b>Thr"
    found = [(snippet.id, snippet.text) for snippet in snippets_of(output)]
    assert found == [("a", "One.\nTwo."), ("b", "Thr")]


def test_passages_written_as_a_tool_output_are_read_back() -> None:
    given = [Passage(id="1", title="", text="One <b> two."), Passage(id="x9", title="", text="Three\nfour.")]
    assert list(snippets_of(tool_output_of(given))) == given


@real
@pytest.mark.parametrize(
    ("file", "rows"), [("cited_answers_scholarqa.jsonl.gz", 66), ("cited_answers_alce_demos.jsonl", 12)]
)
def test_real_answers_with_sources_are_tasks(file: str, rows: int) -> None:
    tasks = load_questions(DATA / file)
    assert len(tasks) == rows
    assert all(task.evidence and task.evidence.snippets and task.reference for task in tasks)


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


SAID = ("<answer> Tarn</answer>", Action(kind="answer", text="Tarn"))


def test_every_search_that_found_something_is_a_row_with_what_was_thought_before_it() -> None:
    played = episode(
        ("<think> author of The Silent Harbor</think><search> Harbor</search>", search("Harbor", BOOK, LIFE)),
        ("<search> Ada Voss</search>", search("Ada Voss", LIFE)),
        ("<search> nobody</search>", search("nobody")),
        SAID,
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
    assert is_accepted(Score(value=0.5, parts=parts)) == accepted
    assert not is_accepted(Score(value=None, parts=parts))


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
    [row] = accepted_rows(list(zip(played, values, strict=True)))
    assert row["answer"] == "<answer>two</answer>"
    assert task_from_row(row, "rows.jsonl:1") == replace(task, reference="<answer>two</answer>")
    assert accepted_rows([(played[2], values[2])]) == []


def test_a_task_as_a_row_is_the_task_again() -> None:
    task = task_from_row(ROW | {"answer": "<answer>x</answer>"}, "rows.jsonl:1")
    assert task_from_row(row_of(task), "rows.jsonl:1") == task
