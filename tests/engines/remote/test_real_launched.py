"""A run starts a real vLLM by itself, restarts it, evaluates with it and ends it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from real_vllm import VLLM, require_every_episode_once

from benchmarks.launched_killed import VICTIMS, servers_of

pytestmark = pytest.mark.servers


@pytest.mark.parametrize(
    ("victim", "why"), [("engine", "has refused connections for 5 s"), ("server", "ended (status")]
)
def test_a_run_starts_a_real_vllm_and_ends_it(recipe_file, run, tmp_path, victim, why):
    """From nothing to the evaluation, with a kill in the second step, and no process is left."""
    folder = tmp_path / "run"
    killing = threading.Thread(target=kill_launched_in_second_step, args=(folder / "metrics.jsonl", VICTIMS[victim]))
    killing.start()
    run(recipe_file, folder, f"stage.1.engine={{ launch = 'vllm', command = '{VLLM}' }}")
    killing.join()
    steps = require_every_episode_once(folder)
    assert sum(step["servers_reloaded"] for step in steps) > 0
    assert f"the server {why}" in (folder / "servers" / "vllm-0.log").read_text()
    assert servers_of(os.getpid()) == []


def kill_launched_in_second_step(metrics: Path, victim: bytes) -> None:
    deadline = time.monotonic() + 300
    while not (metrics.exists() and '"step": 1' in metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # turns are in flight
    for pid in servers_of(os.getpid(), victim):
        os.kill(pid, signal.SIGKILL)
