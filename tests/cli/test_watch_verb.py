"""`sleuth watch`: what it says before it serves, that it serves, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx


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
