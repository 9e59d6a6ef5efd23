"""`sleuth serve`: what it says before it serves, and that it serves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from forked import program
from verb import sleuth

from sleuth.retrieval.bm25 import build_index

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((BASE, "--index", "x", "--url", "http://127.0.0.1:9"), "passages come from one of them"),
        ((BASE, "--url", "127.0.0.1:9"), "--url 127.0.0.1:9: should be http://HOST:PORT"),
        ((BASE, "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
        (("no/such/model/here",), "no such folder"),
        ((BASE, "--index", "no-index"), "no index here"),
        ((BASE, "--questions", "no.jsonl"), "no.jsonl: no such file"),
        ((BASE, "--context", "4096"), "the model holds 1024 tokens"),
        ((BASE, "--host", "no-such-host.invalid"), "cannot listen there"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments: tuple[object, ...], line: str) -> None:
    result = sleuth("serve", *arguments, *(() if "--host" in arguments else ("--port", 0)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_reported_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = sleuth("serve", "no/such/model/here", "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "cannot listen there (Address already in use)" in result.stderr


def test_a_checkpoint_is_served_until_the_process_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "\\"Tarn\\"\\nA town."}\n')
    build_index(tmp_path / "c.jsonl", tmp_path / "index")
    command = [
        *program(),
        "serve",
        str(BASE),
        "--index",
        str(tmp_path / "index"),
        "--port",
        "0",
        "--slots",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first.startswith("tiny-base: sleuth dialect, 1024 tokens of context, at http://127.0.0.1:")
        url = first.strip().rpartition(" ")[2]
        while True:
            try:
                assert httpx.get(f"{url}/health").json()["status"] == "ready"
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Where?"}]}, timeout=60
        )
        assert answer.status_code == 200
        assert json.loads(answer.text)["model"] == "tiny-base"
        assert "Sleuth" in httpx.get(url).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert "carries no protocol" in process.stderr.read()


@pytest.mark.parametrize("verb", ["serve", "retriever"])
def test_other_machines_are_let_in_with_a_key_or_by_a_word_only(
    verb: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLEUTH_API_KEY", raising=False)
    place = BASE if verb == "serve" else world / "index"
    refused = sleuth(verb, place, "--host", "0.0.0.0", "--port", 0)
    assert refused.exit_code == 2
    assert "SLEUTH_API_KEY" in refused.stderr
    assert "--insecure" in refused.stderr
    assert refused.stderr.count("\n") == 1
