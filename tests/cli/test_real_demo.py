"""`sleuth demo --real`: the page, one answer in the terminal, and every mistake in one line."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from forked import program
from verb import printed_json, refusal, sleuth

from sleuth.answers.match import exact_match
from sleuth.cli import demo as real_demo
from sleuth.cli.ask import READER
from sleuth.cli.demo import CORPUS, INDEX, QUESTIONS
from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import FILE as PROTOCOL
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation.eval_session import EvalSession
from sleuth.host.checksums import list_again, write_checksums
from sleuth.kernels.compiled import is_compiled_for
from sleuth.recipe import shipped
from sleuth.retrieval.index_card import read_card
from sleuth.types import Engine, Sampling

ROOT = Path(__file__).parents[2]
BASE = ROOT / "models" / "tiny-base"
SENTENCE = "Ada Voss, the painter of the northern lakes and their mills, was born there, in Tarn."
TARN = f"The town of Tarn has many lakes and an old mill. {SENTENCE}"
PASSAGES = {"r1": ("Ada Voss", "Ada Voss painted."), "r2": ("Tarn", TARN), "r3": ("Lake", "A lake lies by the mill.")}
QUESTION = "Where was Ada Voss the painter born?"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model in the current folder: a stand-in whose engine searches and quotes the passage about Tarn."""
    folder = tmp_path / READER
    shutil.copytree(BASE, folder)
    shutil.copy(ROOT / READER / "certainty.json", folder)
    write_protocol(folder, "reading")
    write_corpus(folder / CORPUS)
    row = {"id": "q1", "question": QUESTION, "golden_answers": ["Tarn"]}
    (folder / QUESTIONS).write_text(json.dumps(row) + "\n")
    write_checksums(folder, but=[CORPUS])  # which tests change
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EvalSession, "open_engine", scripted)
    return folder


def scripted(session: EvalSession) -> Engine:
    assert not is_compiled_for(torch.device("cpu"), torch.float32)  # it would take longer than the answer

    def answer(text: str, sampling: Sampling) -> str:
        if "<passage>" not in text:
            return "<search> painter mill Ada</search>" if "Ada" in text else "<answer> no idea</answer>"
        return "<answer> Tarn [.]</answer>"

    return ScriptedEngine(session.tokenizer, answer)


def write_protocol(folder: Path, dialect: str, **changes: Any) -> None:
    card = ProtocolCard(
        dialect=replace(DIALECTS[dialect], **changes),
        prompt="reading",
        prompt_text="<question> {question}",
        prompt_sha256=text_sha256("<question> {question}"),
        context=512,
        scorer="strict",
        sleuth_version="0.1.0",
    )
    card.write(folder)
    list_again(folder, PROTOCOL)


def write_corpus(file: Path, extra: str = "") -> None:
    rows = [{"id": key, "contents": f'"{title}"\n{text}{extra}'} for key, (title, text) in PASSAGES.items()]
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def test_a_question_is_answered_in_the_terminal_with_the_sentence_that_is_cited(folder: Path) -> None:
    result = sleuth("demo", "--real", "--quiet", "--ask", QUESTION)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines == [
        "Answer    Tarn",
        "From      Tarn",
        "          Ada Voss, the painter of the northern lakes and their mills, was born",
        "          there, in Tarn.",
        "Searched  painter mill Ada: Tarn; Ada Voss; Lake",
    ]
    assert max(map(len, lines)) <= 80
    unread = sleuth("demo", "--real", "--quiet", "--ask", "Who?")
    assert unread.stdout == "Answer    no idea\nFrom      no passage\n"
    assert is_compiled_for(torch.device("cpu"), torch.float32)  # afterwards


def test_the_questions_that_the_pages_ask_are_answered_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    locomotive = "Who built the first railway steam locomotive?"
    right = {locomotive: "Richard Trevithick", "Where was Beyoncé born?": "Houston"}
    pages = [ROOT / "README.md", ROOT / "docs/how-to/real_demo.md"]
    asked = re.findall(r'--ask "([^"]+)"', "".join(page.read_text() for page in pages))
    assert len(asked) == len(pages)
    for question in asked:
        result = sleuth("demo", "--real", "--quiet", "--ask", question)
        assert right[question] in result.stdout


def test_the_questions_that_it_offers_are_answered_right_from_the_gold_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offered = [json.loads(line) for line in (ROOT / READER / QUESTIONS).read_text().splitlines()]
    assert len(offered) == 9
    for row in offered:
        told = printed_json("demo", "--real", "--quiet", "--ask", row["question"])
        assert exact_match(told["answer"], row["golden_answers"])
        assert [citation["id"] for citation in told["citations"]] == row["gold_ids"]


@pytest.mark.long
def test_the_first_answer_of_the_readme_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "README.md").read_text()
    [(folder, question)] = re.findall(r'^sleuth ask (\S+) "([^"]+)"$', page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    result = sleuth("ask", ROOT / folder, question)
    assert result.exit_code == 0, result.stderr
    assert f"```text\n{result.stdout}```" in page


def test_json_is_one_object_in_the_form_of_the_chat_api(folder: Path) -> None:
    told = printed_json("demo", "--real", "--quiet", "--ask", QUESTION)
    assert (told["question"], told["answer"], told["stop"]) == (QUESTION, "Tarn", "answered")
    [citation] = told["citations"]
    assert (citation["id"], citation["title"]) == ("r2", "Tarn")
    [search] = told["searches"]
    shown = [passage["text"] for passage in search["passages"] if passage["id"] == "r2"]
    assert shown == [SENTENCE, "The town of Tarn has many lakes and an old mill."]
    assert citation["text"] == SENTENCE == shown[0][citation["sentence"]["begin"] : citation["sentence"]["stop"]]


def test_the_index_is_built_once_and_again_when_the_passages_or_its_files_change(folder: Path) -> None:
    def built() -> int:
        assert sleuth("demo", "--real", "--quiet", "--ask", "Who?").exit_code == 0
        return (INDEX / "card.json").stat().st_mtime_ns

    first = built()
    assert built() == first
    assert read_card(INDEX).count == len(PASSAGES)
    write_corpus(folder / CORPUS, " More.")
    second = built()
    assert second > first
    (INDEX / "passages.jsonl").write_text("cut")
    third = built()
    assert third > second
    (INDEX / "card.json").write_text("{}")
    assert built() > third


def test_the_page_is_served_with_examples_until_the_process_is_stopped(folder: Path) -> None:
    command = [*program(), "demo", "--real", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip() for _ in range(5)]
        assert lines[0] == "tiny-real searches 3 passages"
        assert lines[2:] == [
            f"  {QUESTION}",
            "Most passages are about Ada Voss, Lake, Tarn.",
            "A click on what an answer cites shows the sentence. Stop it with Ctrl-C.",
        ]
        url = lines[1].split()[1].rstrip("/")
        for _ in range(200):
            try:
                [model] = httpx.get(f"{url}/v1/models").json()["data"]
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        else:
            pytest.fail("the page does not answer")
        assert model["sleuth"]["examples"] == [QUESTION]
        assert model["sleuth"]["topics"] == ["Ada Voss", "Lake", "Tarn"]
        assert "page.js" in httpx.get(url).text
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_taken_port_is_one_line_and_without_a_wish_the_next_free_one_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal("demo", "--real", "--port", port)
        assert line == f"--port {port}: cannot listen there (Address already in use); --port 0 takes a free one"
        with real_demo.listen_here(None, port) as other:
            assert port < other.getsockname()[1] < port + 20


def test_the_model_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped, "shipped", lambda name: tmp_path / "nowhere" / name)
    line = refusal("demo", "--real")
    assert line.startswith("models/tiny-real: this version of Sleuth does not ship it, and there is none here;")


def test_a_model_of_another_protocol_is_refused(folder: Path) -> None:
    write_protocol(folder, "sleuth")
    line = refusal("demo", "--real", "--ask", "Who?")
    assert "its answers, in the dialect 'sleuth', quote nothing; this demo needs" in line
    write_protocol(folder, "reading", answer_inner=r"(?s)\A(?P<text>.*?\S)\s*(?:\[(?P<cited>\d)\]\s*)?\Z")
    line = refusal("demo", "--real", "--ask", "Who?")  # a model of before, which cited by number
    assert "its answers, in the dialect 'reading', quote nothing; this demo needs" in line
    (folder / PROTOCOL).unlink()
    assert "tiny-real: has no protocol.json; this demo needs" in refusal("demo", "--real", "--ask", "Who?")


def test_absent_or_cut_passages_and_a_taken_place_of_the_index_are_one_line(folder: Path) -> None:
    packed = (folder / CORPUS).read_bytes()
    INDEX.mkdir(parents=True)
    (INDEX / "mine.txt").write_text("mine")
    assert "exists and is not an index" in refusal("demo", "--real", "--ask", "Who?")
    (INDEX / "mine.txt").unlink()
    (folder / CORPUS).write_bytes(packed[: len(packed) // 2])
    assert CORPUS in refusal("demo", "--real", "--port", 0)
    (folder / CORPUS).write_bytes(b"")
    assert CORPUS in refusal("demo", "--real", "--ask", "Who?")
    (folder / CORPUS).unlink()
    assert f"{CORPUS}: no such file" in refusal("demo", "--real")


@pytest.mark.parametrize("question", ["", " \n", "why " * 2000])
def test_a_question_that_is_empty_or_longer_than_the_context_is_one_line(folder: Path, question: str) -> None:
    line = refusal("demo", "--real", "--quiet", "--ask", question)
    assert line.startswith("--ask: the question is empty" if not question.strip() else "--ask: the prompt")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--port", 8000), "--port is for the real questions; add --real"),
        (("--real", "--json"), "--json prints an answer; add --ask QUESTION"),
        (("--real", "--ask", "Who?", "--port", 1), "--port is for the page, and --ask answers here"),
        (("--real", "--run", "runs/mine"), "--run is for training, and --real trains nothing"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options: tuple[object, ...], line: str) -> None:
    assert refusal("demo", *options) == line
