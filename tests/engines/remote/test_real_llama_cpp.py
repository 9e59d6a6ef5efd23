"""The shipped reader, exported, in a real llama.cpp behind our search loop. Each server is skipped where it is not:
that of llama-cpp-python, which `make llama` builds, llama.cpp's own, and the same from the wheel `xllamacpp`."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import httpx
import pytest
from emulator.model_server import free_url
from tokenizers import Tokenizer
from verb import sleuth

pytest.importorskip("gguf")

from sleuth.convert.gguf_file import export_gguf
from sleuth.retrieval.bm25 import build_index

READER = Path(__file__).parents[3] / "models" / "tiny-real"
QUESTIONS = 40
LLAMA_SERVER = shutil.which("llama-server", path=f"{Path(sys.executable).parent}")
STARTED_SECONDS = 180.0
THERE = ("--host", "127.0.0.1", "--port")


WHEEL = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 4096, 4, 1
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
time.sleep(3600)
"""


def python_server(file: Path, port: str) -> list[str]:
    options = ("--n_ctx", "1024", "--n_threads", "1", "--type_k", "0", "--type_v", "0", *THERE, port)  # in float32
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(file), *options]


def own_server(file: Path, port: str) -> list[str]:
    options = ("-c", "4096", "-np", "4", "-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", *THERE, port)
    return [str(LLAMA_SERVER), "-m", str(file), *options]


def wheel_server(file: Path, port: str) -> list[str]:
    return [sys.executable, "-c", WHEEL, str(file), port]


THERE_ARE = {
    python_server: find_spec("llama_cpp") is not None,
    own_server: LLAMA_SERVER is not None,
    wheel_server: find_spec("xllamacpp") is not None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's file, passages with their index, questions about them, and the answers of this process."""
    folder = tmp_path_factory.mktemp("real")
    export_gguf(READER, folder / "tiny-real-f32.gguf", dtype="f32")
    with gzip.open(READER / "corpus.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, 400 * QUESTIONS, 400)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    titles = {row["id"]: row["contents"].splitlines()[0].strip('"') for row in rows}
    asked = [
        {"id": number, "question": f"What is {title} known for?", "golden_answers": ["x"]}
        for number, title in titles.items()
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    build_index(folder / "corpus.jsonl", folder / "index")
    evaluated(folder, "here", "--dtype", "float32")
    return folder


def evaluated(folder: Path, name: str, *more: object) -> list[dict]:
    """The records of `sleuth eval`."""
    given = ("--questions", folder / "questions.jsonl", "--index", folder / "index", "--out", folder / f"{name}.json")
    result = sleuth("eval", READER, *given, *more)
    assert result.exit_code == 0, result.output
    return json.loads((folder / f"{name}.json").read_text())["records"]


@pytest.fixture(scope="module", params=[one for one, there in THERE_ARE.items() if there])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a server of the file."""
    url = free_url()
    with started(request.param(folder / "tiny-real-f32.gguf", url.rsplit(":")[-1]), f"{url}/v1/models"):
        yield url


class started:  # noqa: N801
    """A process that answers at a URL, for the context."""

    def __init__(self, command: list[str], url: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = url

    def __enter__(self) -> None:
        deadline = time.monotonic() + STARTED_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(self.url).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"{self.process.args} did not start")

    def __exit__(self, *raised: object) -> None:
        self.process.terminate()
        self.process.wait(10)


def test_transcripts_are_those_of_the_engine_in_this_process(engine: str, folder: Path) -> None:
    """One may differ where the model writes tokens that an encoder would not have made of their text."""
    here = json.loads((folder / "here.json").read_text())["records"]
    there = evaluated(folder, "there", "--engine", engine)
    assert sum(record["searches"] for record in here) >= QUESTIONS - 2
    kind = json.loads((folder / "there.json").read_text())["engine"]["kind"]
    tokenizer = Tokenizer.from_file(str(READER / "tokenizer.json"))
    differ = [(one, other) for one, other in zip(here, there, strict=True) if one["segments"] != other["segments"]]
    unusual = [
        (one, other)
        for one, other in differ
        if any(len(tokenizer.encode(turn["text"]).ids) != turn["tokens"] for turn in one["segments"])
    ]
    assert differ == unusual
    if kind == "llama.cpp":  # it streams no token that ends within a character, and the rest is the same
        assert [one["answer"] for one in here] == [one["answer"] for one in there]
    assert len(differ) <= 2


def test_sleuth_serve_runs_the_search_loop_in_front_of_it(engine: str, folder: Path) -> None:
    records = json.loads((folder / "here.json").read_text())["records"][:3]
    url = free_url()
    serve = ("serve", str(READER), "--engine", engine, "--index", str(folder / "index"), "--port", url.rsplit(":")[-1])
    with started([sys.executable, "-m", "sleuth", *serve], f"{url}/health"):
        for record in records:
            message = {"role": "user", "content": record["question"]}
            answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": [message]}, timeout=60).json()
            assert answer["choices"][0]["message"]["content"] == (record["answer"] or "")
            assert len(answer["sleuth"]["searches"]) == record["searches"]
