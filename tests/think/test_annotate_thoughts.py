"""`sleuth annotate thoughts`: places and thoughts of a teacher's, spliced into the source's own text."""

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
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.data.documents import read_documents
from sleuth.evaluation.intervals import Measured
from sleuth.judges.judge_prompts import InvalidAnswerError
from sleuth.think.annotate import ThoughtQuestion
from sleuth.think.splicing import extract_thoughts
from sleuth.think.thought_rows import SourceGate
from sleuth.think.world_texts import ChainedTexts
from sleuth.types import Thought

ROOT = Path(__file__).parents[2]
BASE = ROOT / "models" / "tiny-base"
REAL_DATA = ROOT.parent / "shared" / "data"
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
    drawn = ChainedTexts(200, "train", (3,))
    rows = [{"id": f"t{at}", "text": drawn.text(at).text, "source": "chains"} for at in range(COUNT)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def annotated(texts: Path, server: ChatServer, *options: object) -> Result:
    teacher = texts.with_name("teacher.toml")
    teacher.write_text(f'[teacher]\nurls = ["{server.url}"]\nmodel = "{MODEL}"\n')
    asked = ["--teacher", teacher, "--model", BASE, "--out", texts.with_name("out.parquet"), "--tokens", 48]
    return CliRunner().invoke(app, ["annotate", "thoughts", str(texts), *map(str, [*asked, *options])])


def test_rows_hold_the_sources_text_and_the_thoughts_and_can_be_read_as_documents(
    texts: Path, server: ChatServer, tmp_path: Path
) -> None:
    result = annotated(texts, server, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["kept"], told["left_out"], told["without"]) == (COUNT, 0, {})
    assert [(gate["source"], gate["documents"], gate["passes"]) for gate in told["gates"]] == [("chains", COUNT, True)]
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    sources = {document.id: document for document in read_documents(texts)}
    for row in rows:
        assert sources[row["id"]].text.startswith(row["raw_text"])
        text, [thought] = extract_thoughts(row["augmented_text"])
        assert text == row["raw_text"]
        assert row["thoughts"] == [{"at": thought.at, "text": thought.text}]
        assert len(row["augmented_token_ids"]) > len(row["raw_token_ids"]) == 48
    documents = list(read_documents(tmp_path / "out.parquet"))
    assert [document.origin for document in documents] == [row["id"] for row in rows]
    card = (tmp_path / "out.md").read_text()
    assert f"{COUNT} texts of" in card
    assert f"| chains | {COUNT} | 0." in card
    assert "passes |" in card


def test_a_source_whose_thoughts_do_not_help_is_left_out_and_the_answers_stay(
    texts: Path, server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda body: thinking((1, "zebra zebra"))
    result = annotated(texts, server)
    assert result.exit_code == 2
    assert "no source has thoughts that make the following text likelier" in result.stderr
    assert not (tmp_path / "out.parquet").exists()
    asked = len(server.asked)
    result = annotated(texts, server, "--no-gate")
    assert (result.exit_code, len(server.asked)) == (0, asked)
    assert f"{COUNT} of {COUNT} texts with thoughts, {COUNT} of them answered before" in result.stdout
    assert "does not pass" in result.stdout
    assert "No source was left out." in (tmp_path / "out.md").read_text()


def test_a_second_run_asks_only_for_missing_texts(texts: Path, server: ChatServer, tmp_path: Path) -> None:
    annotated(texts, server, "--limit", 5, "--no-gate")
    assert len(server.asked) == 5
    answers = tmp_path / "out.answers.jsonl"
    answers.write_text(answers.read_text()[:-20])  # as a killed process leaves it
    assert annotated(texts, server).exit_code == 0
    assert len(server.asked) == 5 + 1 + COUNT - 5
    assert len(answers.read_text().splitlines()) == COUNT


def test_texts_that_the_teacher_fails_on_are_reported_and_asked_again(texts: Path, server: ChatServer) -> None:
    def unwell(body: dict[str, Any]) -> tuple[int, object]:
        return thinking((99, "so")) if zlib.crc32(part(body, "text").encode()) % 3 == 0 else helpful(body)

    server.answer = unwell
    first = annotated(texts, server, "--no-gate")
    assert first.exit_code == 1
    assert "without thoughts: thoughts.0.place should be a number from 1 to" in first.stdout
    server.answer = helpful
    assert annotated(texts, server).exit_code == 0


def test_wrong_arguments_are_one_line(texts: Path, server: ChatServer) -> None:
    for options, message in (
        (("--part", "dev"), "--part dev: should be sft, rl, held_out"),
        (("--out", "rows.jsonl"), "--out rows.jsonl: should end in .parquet"),
        (("--tokens", 4000), "no document has 4000 tokens"),
    ):
        result = annotated(texts, server, *options)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


QUESTION = ThoughtQuestion(text="One. Two. Three.", places=(4, 9))


def test_a_teachers_answer_is_read_strictly_and_its_thoughts_stand_in_order() -> None:
    def answer(*thoughts: dict[str, object]) -> str:
        return json.dumps({"thoughts": thoughts})

    said = answer({"place": 2, "thought": " so\nit  is "}, {"place": 1, "thought": "well"})
    assert QUESTION.read(said) == (Thought(at=4, text="well"), Thought(at=9, text="so it is"))
    for wrong, why in (
        ("{}", "there should be a list of thoughts"),
        (answer(), "one to 6 thoughts, found 0"),
        (answer({"place": 3, "thought": "x"}), "thoughts.0.place should be a number from 1 to 2"),
        (answer({"place": True, "thought": "x"}), "thoughts.0.place should be a number"),
        (answer({"place": 1, "thought": "x"}, {"place": 1, "thought": "y"}), "a place is named twice"),
        (answer({"place": 1, "thought": " "}), "one to 90 words"),
        (answer({"place": 1, "thought": "a <think> b"}), "no tags"),
        (answer({"place": 1, "thought": "x", "why": "y"}), "a place and a thought, and nothing else"),
    ):
        with pytest.raises(InvalidAnswerError, match=re.escape(why)):
            QUESTION.read(wrong)
    assert "One.⟦1⟧ Two.⟦2⟧ Three." in QUESTION.message
    assert QUESTION.schema["properties"]["thoughts"]["items"]["properties"]["place"]["maximum"] == 2


LEAST = 16
"""Documents."""


def gate(blank: tuple[float, float], generic: tuple[float, float], documents: int = LEAST) -> SourceGate:
    gains = [Measured(value=sum(ends) / 2, low=ends[0], high=ends[1], n=documents) for ends in (blank, generic)]
    return SourceGate(source="s", documents=documents, over_blank=gains[0], over_generic=gains[1])


def test_both_gains_must_be_above_zero_with_their_whole_intervals() -> None:
    assert gate((0.1, 0.3), (0.01, 0.2)).passes
    assert not gate((0.1, 0.3), (0.0, 0.2)).passes
    assert not gate((-0.1, 0.3), (0.1, 0.2)).passes


@pytest.mark.parametrize(("documents", "passes"), [(0, False), (LEAST - 1, False), (LEAST, True)])
def test_too_few_documents_cannot_tell(documents: int, passes: bool) -> None:
    assert gate((0.1, 0.3), (0.1, 0.3), documents).passes is passes
