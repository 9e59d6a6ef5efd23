"""Thoughts that a teacher writes into texts, by a stage of a run: the source's text stays."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from chat_server import MODEL, ChatServer, part, says
from continuations import BASE, write_chained
from typer.testing import Result
from verb import sleuth

from sleuth.data.documents import read_documents
from sleuth.evaluation.intervals import Measured
from sleuth.judges.judge_prompts import InvalidAnswerError
from sleuth.think.annotate import ThoughtQuestion
from sleuth.think.splicing import extract_thoughts
from sleuth.think.thought_rows import SourceGate

COUNT = 18


def thinking(*thoughts: tuple[object, object]) -> tuple[int, object]:
    return says(json.dumps({"thoughts": [{"place": place, "thought": thought} for place, thought in thoughts]}))


def helpful(body: dict[str, Any]) -> tuple[int, object]:
    """Thinks, behind the first sentence, all that follows: nothing makes it likelier."""
    _, *rest = re.split(r"⟦\d+⟧", part(body, "text"))
    return thinking((1, "".join(rest)))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer=helpful).running() as server:
        yield server


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_chained(tmp_path / "texts.jsonl", COUNT)


ALONE = """
name = "alone"
model = "{model}"
[[stage]]
kind = "annotate"
name = "annotated"
texts = "{texts}"
out = "{out}"
tokens = 48
teacher = {{ urls = ["{url}"], model = "{name}" }}
"""


def annotated(texts: Path, server: ChatServer, run: str, *overrides: str) -> Result:
    recipe, out = texts.with_name("alone.toml"), texts.with_name("out.parquet")
    recipe.write_text(ALONE.format(model=BASE, texts=texts, out=out, url=server.url, name=MODEL))
    more = [word for override in overrides for word in ("--set", f"annotated.{override}")]
    return sleuth("train", recipe, "--run", texts.with_name(run), *more)


def test_rows_hold_the_sources_text_and_the_thoughts_and_can_be_read_as_documents(
    texts: Path, server: ChatServer, tmp_path: Path
) -> None:
    result = annotated(texts, server, "run")
    assert result.exit_code == 0, result.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == COUNT
    sources = {document.id: document for document in read_documents(texts)}
    for row in rows:
        assert sources[row["id"]].text.startswith(row["raw_text"])
        text, [thought] = extract_thoughts(row["augmented_text"])
        assert text == row["raw_text"]
        assert row["thoughts"] == [{"at": thought.at, "text": thought.text}]
        assert len(row["augmented_token_ids"]) > len(row["raw_token_ids"]) == 48
    assert [document.origin for document in read_documents(tmp_path / "out.parquet")] == [row["id"] for row in rows]
    card = (tmp_path / "out.md").read_text()
    assert f"{COUNT} texts of" in card
    assert re.search(rf"\| chains \| {COUNT} \| 0\..*passes \|", card)


def test_a_source_whose_thoughts_do_not_help_is_left_out_and_the_answers_stay(
    texts: Path, server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda body: thinking((1, "zebra zebra"))
    result = annotated(texts, server, "run")
    assert result.exit_code == 1
    assert "no source has thoughts that make the following text likelier" in result.stderr
    assert "gated = false" in result.stderr
    assert not (tmp_path / "out.parquet").exists()
    asked = len(server.asked)
    result = annotated(texts, server, "another", "gated=false")
    assert (result.exit_code, len(server.asked)) == (0, asked)
    assert f"{COUNT} of {COUNT} texts with thoughts" in (tmp_path / "another" / "log.txt").read_text()
    assert "No source was left out." in (card := (tmp_path / "out.md").read_text())
    assert "does not pass" in card


def test_a_second_run_asks_only_for_texts_without_a_whole_answer(
    texts: Path, server: ChatServer, tmp_path: Path
) -> None:
    def unwell(body: dict[str, Any]) -> tuple[int, object]:
        return thinking((99, "so")) if zlib.crc32(part(body, "text").encode()) % 3 == 0 else helpful(body)

    server.answer = unwell
    first = annotated(texts, server, "run")
    assert first.exit_code == 1
    assert "got no thoughts (thoughts.0.place should be a number from 1 to" in first.stderr
    answers, asked, server.answer = tmp_path / "out.answers.jsonl", len(server.asked), helpful
    kept = answers.read_text().splitlines()
    assert 1 < len(kept) < COUNT
    answers.write_text(answers.read_text()[:-20])  # as a killed process leaves it
    assert annotated(texts, server, "run").exit_code == 0
    assert len(server.asked) == asked + COUNT - len(kept) + 1
    assert len(answers.read_text().splitlines()) == COUNT


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("part=dev", 'part = "dev": should be'),
        ("out=rows.jsonl", "should end in .parquet"),
        ("tokens=4000", "no document has 4000 tokens"),
    ],
)
def test_wrong_keys_are_one_line(texts: Path, server: ChatServer, override: str, message: str) -> None:
    result = annotated(texts, server, "run", override)
    assert result.exit_code in (1, 2)
    [line] = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert message in line


QUESTION = ThoughtQuestion(text="One. Two. Three.", places=(4, 9))


@pytest.mark.parametrize(
    ("thoughts", "why"),
    [
        (None, "there should be a list of thoughts"),
        ([], "one to 6 thoughts, found 0"),
        ([{"place": 3, "thought": "x"}], "thoughts.0.place should be a number from 1 to 2"),
        ([{"place": True, "thought": "x"}], "thoughts.0.place should be a number"),
        ([{"place": 1, "thought": "x"}, {"place": 1, "thought": "y"}], "a place is named twice"),
        ([{"place": 1, "thought": " "}], "one to 90 words"),
        ([{"place": 1, "thought": "a <think> b"}], "no tags"),
        ([{"place": 1, "thought": "x", "why": "y"}], "a place and a thought, and nothing else"),
    ],
)
def test_a_teachers_answer_is_read_strictly(thoughts: object, why: str) -> None:
    with pytest.raises(InvalidAnswerError, match=re.escape(why)):
        QUESTION.read(json.dumps({"thoughts": thoughts}))


@pytest.mark.parametrize(
    ("blank", "generic", "documents", "passes"),
    [
        ((0.1, 0.3), (0.01, 0.2), 16, True),
        ((0.1, 0.3), (0.0, 0.2), 16, False),
        ((-0.1, 0.3), (0.1, 0.2), 16, False),
        ((0.1, 0.3), (0.1, 0.3), 15, False),
    ],
)
def test_enough_documents_and_both_whole_intervals_above_zero_pass_a_source(
    blank: tuple[float, float], generic: tuple[float, float], documents: int, passes: bool
) -> None:
    gains = [Measured(value=sum(ends) / 2, low=ends[0], high=ends[1], n=documents) for ends in (blank, generic)]
    gate = SourceGate(source="s", documents=documents, over_blank=gains[0], over_generic=gains[1])
    assert gate.passes is passes


# -- as a stage of a run -----------------------------------------------------------------------------------------------

RECIPE = """
name = "taught"
model = "{model}"
[[stage]]
kind = "supervised"
name = "text"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "text", texts = "{texts}", prefix_tokens = 8, suffix_tokens = 8, limit = 6 }}
[[stage]]
kind = "annotate"
name = "annotated"
texts = "{texts}"
out = "{out}"
tokens = 48
gated = false
limit = 6
teacher = {{ urls = ["{url}"], model = "{name}" }}
[[stage]]
kind = "supervised"
name = "shown"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "thoughts", texts = "{out}" }}
"""


def trained(texts: Path, server: ChatServer, run: str = "run") -> Result:
    recipe, out = texts.with_name("taught.toml"), texts.with_name("thoughts.parquet")
    recipe.write_text(RECIPE.format(model=BASE, texts=texts, out=out, url=server.url, name=MODEL))
    return sleuth("train", recipe, "--run", texts.with_name(run), "--quiet")


def error_of(stopped: Result) -> str:
    [line] = [line for line in stopped.stderr.splitlines() if line.startswith("error")]
    return line


def test_a_run_stops_where_the_teacher_is_not_there_and_goes_on_when_it_is(texts: Path, server: ChatServer) -> None:
    server.models = (200, {"data": [{"id": "another"}]})
    stopped = trained(texts, server)
    assert (stopped.exit_code, stopped.stdout) == (1, "")
    missing = f"stage annotated: the teacher that writes {texts.with_name('thoughts.parquet')} is not there"
    assert missing in error_of(stopped)
    checkpoints = texts.with_name("run") / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-000001"]
    server.models = ChatServer().models
    done = trained(texts, server)
    assert done.exit_code == 0, done.stderr
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-000001", "step-000002"]
    assert len(server.asked) == 6
    assert all(document.thoughts for document in read_documents(texts.with_name("thoughts.parquet")))
    again = trained(texts, server, "another")  # the file is there: nothing is asked, whoever serves the teacher
    assert (again.exit_code, len(server.asked)) == (0, 6)


def test_texts_without_thoughts_beyond_the_limit_stop_the_run_and_are_asked_for_again(
    texts: Path, server: ChatServer
) -> None:
    server.answer = lambda body: helpful(body) if len(server.asked) <= 4 else (400, {"error": "out of credit"})
    stopped = trained(texts, server)
    assert stopped.exit_code == 1
    assert re.search(
        r"[1-5] of 6 texts got no thoughts \(.*\), and at most 5% may; thoughts\.answers\.jsonl", error_of(stopped)
    )
    assert not texts.with_name("thoughts.parquet").exists()
    kept = len(texts.with_name("thoughts.answers.jsonl").read_text().splitlines())
    asked, server.answer = len(server.asked), helpful
    assert trained(texts, server).exit_code == 0
    assert len(server.asked) == asked + 6 - kept


def test_a_file_that_a_later_stage_makes_is_still_missed(texts: Path) -> None:
    recipe, made = texts.with_name("taught.toml"), texts.with_name("made.parquet")
    text = RECIPE.format(model=BASE, texts=texts, out=made, url="http://h", name=MODEL)
    head, first, second, third = text.split("[[stage]]")
    recipe.write_text("[[stage]]".join([head, first, third, second]))
    done = sleuth("train", recipe, "--run", texts.with_name("run"))
    assert done.exit_code == 2
    assert re.search(r"stage\.1\.data\.texts = .*made\.parquet.*: no such file", done.stderr)
