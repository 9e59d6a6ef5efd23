"""`sleuth eval --engine`: a server in the place of the engine in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulator.model_server import ModelServer, free_url
from listening import listening
from typer.testing import Result
from verb import sleuth

from sleuth.engines.launch import SGLANG_RESERVED
from sleuth.learn.models import load_model
from sleuth.retrieval.bm25 import build_index
from sleuth.serve.access import Access, Limits
from sleuth.serve.retriever_app import retriever_app
from sleuth.serve.search_handler import IndexLoader

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
TOWNS = ("Tarn", "Oss", "Lund", "Brig", "Melk", "Ypres")


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    """Questions, and the index to search beside them."""
    folder = tmp_path_factory.mktemp("questions")
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "questions.jsonl").open("w") as questions:
        for number, town in enumerate(TOWNS):
            book, person = f"The Painted Valley of {town}", f"Ada {town} Voss"
            row = {"id": str(number), "contents": f'"{book}"\n{book} was written by {person}.'}
            corpus.write(json.dumps(row) + "\n")
            question = f"{book} was written by whom?"  # the base looks up books
            questions.write(json.dumps({"id": str(number), "question": question, "golden_answers": [person]}) + "\n")
    build_index(folder / "corpus.jsonl", folder / "index")
    return folder / "questions.jsonl"


@pytest.fixture(scope="module", params=["SGLang", "vLLM"])
def server(request) -> Iterator[ModelServer]:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    server = ModelServer(model=model, tokenizer=tokenizer, name=str(BASE), context=1024 + SGLANG_RESERVED)
    with server.listening(request.param):
        yield server


def ask(questions: Path, *more: object) -> tuple[Result, dict]:
    """`sleuth eval`, on the index unless a server is named; what it wrote."""
    out = questions.parent / "out.json"
    out.unlink(missing_ok=True)
    passages = [] if "--retriever" in more else ["--index", questions.parent / "index"]
    result = sleuth("eval", BASE, "--questions", questions, *passages, "--out", out, *more)
    return result, json.loads(out.read_text()) if out.exists() else {}


def test_figures_and_transcripts_are_those_of_the_engine_in_this_process(questions, server, monkeypatch):
    _, here = ask(questions)
    monkeypatch.setattr("sleuth.evaluation.eval_session.load_model", None)  # no weights are loaded for the other
    result, there = ask(questions, "--engine", server.url)
    assert result.exit_code == 0, result.output
    engine = there.pop("engine")
    assert "model_sha256" not in there  # the server has the weights
    assert there == {key: value for key, value in here.items() if key != "model_sha256"}
    assert sum(record["searches"] for record in here["records"]) > 0
    assert engine["url"] == server.url
    assert f"note: {engine['kind']} {engine['version']} at {server.url} serves" in result.stderr


def test_passages_may_come_from_a_server_too(questions):
    _, here = ask(questions)
    opening = IndexLoader(questions.parent / "index")
    opening.start()
    with listening(retriever_app(opening, Limits(), Access()), lifespan="off") as url:
        result, there = ask(questions, "--retriever", url)
    assert result.exit_code == 0, result.output
    assert there == here


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--engine", "localhost:8000"), "--engine localhost:8000: should be http://HOST:PORT"),
        (("--engine", "http://a:1", "--dtype", "bfloat16"), "--dtype bfloat16 is for a model in this process"),
        (("--served-as", "policy"), "--served-as policy is for a server; give its URL too: --engine URL"),
        (("--retriever", "a:1"), "--retriever a:1: should be http://HOST:PORT"),
        (("--retriever", "http://a:1", "--index", "x"), "--index and --retriever are both given"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(questions, options, problem):
    result, _ = ask(questions, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {problem}")


def test_an_unreachable_server_is_one_line(questions):
    result, found = ask(questions, "--engine", free_url())
    assert (result.exit_code, found) == (2, {})
    assert result.stderr.count("\n") == 1
    assert "start a server there first" in result.stderr
