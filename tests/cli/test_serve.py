"""`sleuth serve`: what it says before it serves, and that it serves."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import httpx
from forked import program

from sleuth.retrieval.bm25 import build_index

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


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
