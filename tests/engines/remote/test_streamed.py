"""Servers for evaluation alone: llama.cpp's, llama-cpp-python's and Ollama."""

from __future__ import annotations

import asyncio
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from emulator.streamed import PATHS, StreamedServer
from verb import sleuth

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.http_engine import HttpEngine
from sleuth.engines.remote.server import discover_server, find_server
from sleuth.learn.models import load_model
from sleuth.render import encode, find_eos_ids
from sleuth.retrieval.bm25 import build_index
from sleuth.types import Completion, Sampling, SleuthError

READER = Path(__file__).parents[3] / "models" / "tiny-real"
STOPS = ("</search>", "</answer>")
KINDS = (*PATHS,)


@pytest.fixture(scope="module")
def reader() -> tuple[Any, Any]:
    return load_model(str(READER), dtype="float32", device="cpu")


@pytest.fixture(params=KINDS)
def server(request, reader) -> StreamedServer:
    return StreamedServer(request.param, *reader, name="/models/tiny-real-f32.gguf")


def found(server: StreamedServer) -> tuple[Any, list[str], frozenset[int]]:
    eos_ids = find_eos_ids(server.model.generation_config, server.tokenizer)
    return *find_server(server.url, str(READER), served_as=None, tokenizer=server.tokenizer, eos_ids=eos_ids), eos_ids


def written(server: StreamedServer, text: str, **how: Any) -> tuple[Completion, Completion]:
    """A greedy turn after a text, of the server and of the engine in this process."""
    prompt = encode(server.tokenizer, text)
    sampling = Sampling(**{"max_tokens": 40, "temperature": 0.0, "stops": STOPS} | how)
    with server.listening():
        place, _, eos_ids = found(server)
        engine = HttpEngine(place, server.tokenizer, eos_ids=eos_ids, requests_at_once=4, context=1024)
        there = asyncio.run(engine.complete(prompt, sampling))
    local = LocalEngine(server.model, server.tokenizer, slots=1, context=1024)
    return there, asyncio.run(local.complete(prompt, sampling))


@pytest.mark.parametrize(
    ("how", "stop"), [({}, "stop"), ({"max_tokens": 3}, "length"), ({"stops": ("</never>",)}, "eos")]
)
def test_a_turn_is_that_of_the_engine_in_this_process(server, how, stop, monkeypatch):
    if stop == "eos":
        monkeypatch.setattr(server.model.generation_config, "eos_token_id", encode(server.tokenizer, "</search>"))
    server.stalls_after = "</search>" if stop == "stop" else None
    there, here = written(server, "<question> Who wrote the novel Dune?", **how)
    ended = server.kind != "llama.cpp" and stop == "eos"  # by text it is not known with which token
    assert (there.tokens[: -1 if ended else None], there.text) == (here.tokens[: -1 if ended else None], here.text)
    assert there.stop == here.stop == stop
    assert there.text.endswith("</search>") == (stop == "stop")
    assert server.was_left, "the request is closed at a stop string"
    assert server.bodies[-1].get("options", {"stop": []}).get("stop", []) == [], "which would be left out"
    if server.kind == "llama.cpp" or (server.kind == "Ollama" and stop != "eos"):
        assert there.logprobs == pytest.approx(here.logprobs, abs=1e-4)
    else:
        assert there.logprobs is None


def test_what_is_said_of_a_server(server):
    with server.listening():
        place, notes, _ = found(server)
    assert (place.kind, place.model) == (server.kind, server.name)
    assert place.context == (512 if server.kind == "llama.cpp" else None)
    told = [note for note in notes if "takes and returns text" in note]
    assert len(told) == (server.kind != "llama.cpp")


def test_training_refuses_it_with_one_line(server):
    eos_ids, refusal = find_eos_ids(server.model.generation_config, server.tokenizer), "it takes no weights: train with"
    with server.listening(), pytest.raises(SleuthError, match=refusal) as caught:
        discover_server(server.url, tokenizer=server.tokenizer, eos_ids=eos_ids)
    assert str(caught.value).startswith(f"engine.urls: {server.url}: {server.kind}")


def test_a_turn_that_breaks_off_is_one_line(server):
    server.breaks_after = 2
    with pytest.raises(SleuthError, match="the turn broke off"):
        written(server, "<question> Who wrote the novel Dune?")


def test_a_server_that_reads_another_prompt_is_refused(server):
    if server.kind == "llama-cpp-python":
        pytest.skip("it does not count in a stream")
    server.adds_first = True
    with pytest.raises(SleuthError, match=r"it read \d+ tokens of a prompt of \d+: it has another tokenizer"):
        written(server, "<question> Who wrote the novel Dune?")


def test_an_evaluation_is_that_of_the_engine_in_this_process(server, tmp_path):
    with gzip.open(READER / "corpus.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, 200, 50)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    titles = [row["contents"].splitlines()[0].strip('"') for row in rows[:2]]
    asked = [{"id": title, "question": f"What is {title}?", "golden_answers": ["x"]} for title in titles]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    common = ("eval", READER, "--questions", tmp_path / "q.jsonl", "--index", tmp_path / "index", "--out")
    assert sleuth(*common, tmp_path / "here.json", "--dtype", "float32").exit_code == 0
    with server.listening():
        result = sleuth(*common, tmp_path / "there.json", "--engine", server.url)
    assert result.exit_code == 0, result.output
    here, there = (json.loads((tmp_path / name).read_text())["records"] for name in ("here.json", "there.json"))
    assert there == here
    assert sum(record["searches"] for record in here) == 2
