"""`sleuth check recipe` with a pool: each server is described, whatever the others are like."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from emulator.served import EmulatedServer, emulated_server
from typer.testing import Result
from verb import sleuth

from sleuth.learn.models import load_model

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
RECIPE = """
name = "pooled"
model = "{base}"

[[stage]]
kind = "grpo"
steps = 3
prompts_per_step = 2
samples_per_prompt = 2
learning_rate = 1e-4
context = 300
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", retriever = "empty" }}
{engine}
reward = [{{ kind = "answer" }}]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmulatedServer]:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with emulated_server("vllm", model, tokenizer, context=512) as server:
        yield server


def check(folder: Path, *options: str, urls: list[str] | None) -> Result:
    engine = "" if urls is None else f"engine = {{ urls = {json.dumps(urls)} }}"
    (folder / "questions.jsonl").write_text('{"id": "1", "question": "Where?", "golden_answers": ["Tarn"]}\n')
    (folder / "recipe.toml").write_text(RECIPE.format(base=BASE, folder=folder, engine=engine))
    return sleuth("check", "recipe", folder / "recipe.toml", *options)


def test_a_healthy_pool_is_described_and_may_take_the_weights(tmp_path: Path, server: EmulatedServer) -> None:
    result = check(tmp_path, "--weights", urls=[server.url])
    assert result.exit_code == 0, result.output
    first, of_server, of_weights = result.stdout.splitlines()
    assert first == "ok: 1 stage, 3 steps"
    assert of_server.startswith(f"ok: stage.0 (grpo): {server.url}: vLLM 0.32.0, token ids in and out, log-prob")
    assert "all took the model's weights, and generate with them" in of_weights
    assert server.engine.label.startswith("000000-")


def test_servers_that_hang_cost_the_time_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.engines.remote.server.PROBE_SECONDS", 2.0)
    with ExitStack() as open_:
        mute = [open_.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        result = check(tmp_path, "--json", urls=[f"http://127.0.0.1:{one.getsockname()[1]}" for one in mute])
    findings = json.loads(result.stdout)["pools"]["grpo"]
    assert ["gave no answer within 2 seconds" in finding["line"] for finding in findings] == [True] * 4
    assert 2.0 <= max(finding["seconds"] for finding in findings) < 6.0


def test_a_server_that_a_run_left_paused_is_said_at_once(tmp_path: Path, server: EmulatedServer) -> None:
    httpx.post(f"{server.url}/pause").raise_for_status()
    try:
        result = check(tmp_path, "--json", urls=[server.url])
    finally:
        httpx.post(f"{server.url}/resume").raise_for_status()
    [finding] = json.loads(result.stdout)["pools"]["grpo"]
    assert result.exit_code == 2
    assert finding["line"].startswith("is paused and generates nothing: ")
    assert "wake it with POST /resume" in finding["line"]
    assert finding["seconds"] < 5


@pytest.mark.parametrize(
    ("urls", "problem"),
    [
        ([], "stage.0.engine.urls is empty"),
        (["localhost:8000"], "urls holds 'localhost:8000': expected http://HOST:PORT"),
        (["http://a", "http://a"], "urls names one twice"),
        (None, "--weights is for a recipe in which servers generate"),
    ],
)
def test_a_pool_that_cannot_be_asked_is_one_line(tmp_path: Path, urls: list[str] | None, problem: str) -> None:
    result = check(tmp_path, "--weights", urls=urls)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert problem in result.stderr
