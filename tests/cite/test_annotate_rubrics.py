"""`sleuth annotate rubrics`: criteria of a teacher's, tried by a judge, each row paid for once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from continuations import write_rows
from typer.testing import Result
from verb import sleuth

from sleuth.cite.annotate_rubrics import spoiled
from sleuth.data.questions import load_questions
from sleuth.types import Rubric

TOWNS = {"q1": "Tarn", "q2": "Velde", "q3": "Ulm"}


def criterion(title: str, description: str) -> dict[str, str]:
    return {"title": title, "description": description}


def written(body: dict[str, Any]) -> dict[str, Any]:
    """What a sound teacher writes: the town of the evidence is wanted."""
    town = part(body, "evidence").split()[-1].split(".")[0]
    return {
        "positive_rubrics": [criterion("Birthplace", f"Names {town}.")],
        "negative_rubrics": [criterion("The sea", "Tells of the sea.")],
    }


def teach(body: dict[str, Any]) -> tuple[int, object]:
    """Teacher and judge in one: a criterion is fulfilled where its last word stands in the answer, undenied."""
    if wanted := part(body, "criterion"):
        answer = part(body, "answer")
        return says(scored(2 * (wanted.split()[-1].strip(".") in answer and "not" not in answer)))
    return says(json.dumps(written(body)))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer=teach).running() as server:
        yield server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    born = {id_: f"<snippet id=a1>Ada Voss was born in {town}.</snippet>" for id_, town in TOWNS.items()}
    asked = {"question": "Where was Ada Voss born?", "type": "one_hop"}
    rows = ({"id": id_, "tool_output": text, "answer": text, **asked} for id_, text in born.items())
    return write_rows(tmp_path / "rows.jsonl", rows)


def annotated(
    data: Path, server: ChatServer, *options: str, judged: bool = True, bar: str = "", budget: int | None = None
) -> Result:
    told = f'urls = ["{server.url}"]\nmodel = "{MODEL}"\n' + (f"budget = {budget}\n" if budget else "")
    teacher, judge = data.with_name("teacher.toml"), data.with_name("judge.toml")
    teacher.write_text(f"[teacher]\n{told}")
    judge.write_text(f'[judge]\nkind = "http"\n{bar}{told}')
    asked = ["--judge", judge] if judged else []
    files = ("--teacher", teacher, "--out", data.with_name("out.jsonl"))
    return sleuth("annotate", "rubrics", data, *files, *asked, *options)


def teachers(server: ChatServer) -> int:
    """How often the teacher was asked."""
    return sum(not part(body, "criterion") for body in server.asked)


def test_rows_get_criteria_that_distinguish_their_answer_from_spoiled_ones(
    data: Path, server: ChatServer, tmp_path: Path
) -> None:
    result = annotated(data, server, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["kept"], told["left_out"], told["without"]) == (3, 0, {})
    assert {way: share["value"] for way, share in told["separated"].items()} == dict.fromkeys(
        ("another", "half", "denied"), 1.0
    )
    tasks = {task.id: task for task in load_questions(tmp_path / "out.jsonl")}
    assert tasks["q2"].rubrics == (
        Rubric(title="Birthplace", description="Names Velde."),
        Rubric(title="The sea", description="Tells of the sea.", wanted=False),
    )
    assert tasks["q2"].kind == "one_hop"


def test_a_second_run_asks_only_for_missing_rows_and_rewrites_a_half_written_line(
    data: Path, server: ChatServer, tmp_path: Path
) -> None:
    annotated(data, server, "--limit", "2")
    assert teachers(server) == 2
    out = tmp_path / "out.jsonl"
    whole = out.read_text()
    out.write_text(whole[:-20])  # as a killed process leaves it
    result = annotated(data, server)
    assert teachers(server) == 4
    assert "2 rows more with criteria, 1 from before" in result.stdout
    assert {task.id for task in load_questions(out)} == set(TOWNS)
    annotated(data, server)
    assert teachers(server) == 4
    card = data.with_name("out.md").read_text()  # with the figures of all calls
    assert f"3 rows of `{data}` with criteria by `{MODEL}`" in card
    assert "| wanted criteria a row | 1.00 |" in card
    assert f"by the judge `http {MODEL}" in card
    assert "| half | 1.00 (0.44 to 1.00) of 3 |" in card


def test_the_budget_of_a_teacher_is_spent_once_however_often_the_command_is_started(
    data: Path, server: ChatServer, tmp_path: Path
) -> None:
    for starts, budget, written_so_far in ((3, 2, 2), (1, 3, 3), (1, 3, 3)):
        for _ in range(starts):
            result = annotated(data, server, judged=False, budget=budget)
        assert teachers(server) == budget
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == written_so_far
        assert ("the budget of 2 calls is spent" in result.stdout) == (budget == 2)
    (tmp_path / "out.jsonl").unlink()
    assert "the budget of 3 calls is spent" in annotated(data, server, judged=False, budget=3).stdout
    assert teachers(server) == 3


def test_criteria_that_distinguish_too_little_go_to_a_separate_file(
    data: Path, server: ChatServer, tmp_path: Path
) -> None:
    def vague(body: dict[str, Any]) -> tuple[int, object]:
        return says(json.dumps(written(body) | {"positive_rubrics": [criterion("Her name", "Names Ada.")]}))

    server.answer = lambda body: teach(body) if part(body, "criterion") or "Ulm" in str(body) else vague(body)
    result = annotated(data, server)
    assert "1 rows more with criteria; 2 left out, whose criteria distinguish too little" in result.stdout
    assert [task.id for task in load_questions(tmp_path / "out.jsonl")] == ["q3"]
    assert {task.id for task in load_questions(tmp_path / "out.left_out.jsonl")} == {"q1", "q2"}
    annotated(data, server)
    assert teachers(server) == 3


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ({"positive_rubrics": [], "negative_rubrics": []}, "there should be a positive criterion at least"),
        (
            {"positive_rubrics": [criterion(f"t{n}", f"d{n}") for n in range(6)], "negative_rubrics": []},
            "there should be 5 criteria at most, found 6",
        ),
        ({"positive_rubrics": [{"title": "x"}], "negative_rubrics": []}, "should have a title and a description"),
        ({"positive_rubrics": [criterion("x", " ")], "negative_rubrics": []}, "should have a title and a description"),
        ({"positive_rubrics": [criterion("x", "y")] * 2, "negative_rubrics": []}, "a criterion is there twice"),
        ({"positive_rubrics": [criterion("a " * 13, "y")], "negative_rubrics": []}, "should have two to six words"),
        ({"rubrics": []}, "the keys should be positive_rubrics and negative_rubrics"),
    ],
)
def test_a_row_with_two_malformed_answers_has_no_criteria_and_is_asked_again(
    data: Path, server: ChatServer, tmp_path: Path, answer: dict[str, Any], wrong: str
) -> None:
    server.answer = lambda body: says(json.dumps(answer))
    result = annotated(data, server, "--limit", "1", judged=False)
    assert result.exit_code == 1
    assert wrong in result.stdout
    assert teachers(server) == 2
    assert "That cannot be read" in server.asked[1]["messages"][-1]["content"]
    assert not (tmp_path / "out.jsonl").exists()
    server.answer = teach
    assert annotated(data, server, "--limit", "1", judged=False).exit_code == 0


def test_wrong_inputs_are_one_line(data: Path, server: ChatServer) -> None:
    for options, said in (
        (("--out", str(data.with_suffix(".csv"))), ["should end in .jsonl"]),
        (("--teacher", str(data.with_name("judge.toml"))), ["judge is no key here", "teacher is missing"]),
    ):
        result = annotated(data, server, *options)
        lines = result.stderr.splitlines()
        assert result.exit_code == 2
        assert all(part in line for part, line in zip(said, lines, strict=True))
    before = data.read_text()
    assert "was not written by annotate" in annotated(data, server, "--out", str(data)).stderr
    assert data.read_text() == before
    data.write_text(before.replace('"answer"', '"reply"'))
    assert "no row has an `answer`" in annotated(data, server).stderr


def test_every_way_of_spoiling_leaves_ids_alone_and_changes_what_is_said() -> None:
    assert spoiled("<snippet id=a1>Ada Voss was born in Tarn in 1874.</snippet>", "Celia wrote it.") == {
        "another": "Celia wrote it.",
        "half": "<snippet id=a1>Ada Voss was",
        "denied": "<snippet id=a1>Ada Voss was not born in Tarn in 1874.</snippet>",
        "numbers_changed": "<snippet id=a1>Ada Voss was born in Tarn in 4107.</snippet>",
    }
    assert spoiled("Tarn.", "") == {}  # ways that change nothing or leave nothing
    assert spoiled("Ada Voss of Tarn.", "Ada Voss of Tarn.").keys() == {"half"}
