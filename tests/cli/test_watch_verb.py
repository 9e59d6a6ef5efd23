"""`sleuth watch`: what it says before it serves, that it serves, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from verb import sleuth


def test_a_mistake_is_one_line_and_status_2(tmp_path: Path) -> None:
    for arguments, line in (
        ([tmp_path / "nope"], "nope: no such folder; give the folder of a run, for example runs/demo"),
        ([tmp_path, tmp_path], "is given twice"),
        ([tmp_path, "--host", "0.0.0.0"], "--insecure"),
    ):
        result = sleuth("watch", *arguments, "--port", 0)
        assert (result.exit_code, result.stdout) == (2, "")
        assert line in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_taken_port_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = sleuth("watch", tmp_path, "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "cannot listen there (Address already in use); --port 0 takes a free one\n" in result.stderr


def test_it_serves_without_torch_until_ctrl_c(tmp_path: Path) -> None:
    script = "import sys, atexit; sys.argv[0] = 'sleuth'; from sleuth.cli import main\n"
    script += "atexit.register(lambda: print('torch' in sys.modules)); main()"
    command = [sys.executable, "-u", "-c", script, "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            assert first.startswith(f"{tmp_path}: at http://127.0.0.1:")
            title = state_at(first.split()[2])["title"]
            process.send_signal(signal.SIGINT)
            status = process.wait(20)
        finally:
            process.kill()
        assert title == f"waiting: no run has begun in this folder · {tmp_path.name}"
        assert sorted(tmp_path.iterdir()) == []  # it only reads
        assert (status, process.stdout.read(), process.stderr.read()) == (130, "False\n", "interrupted\n")


def state_at(url: str) -> dict[str, Any]:
    """What the server answers, once it does."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
        return client.get(f"{url}0/state").json()
