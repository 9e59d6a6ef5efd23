"""A real vLLM for CPUs in a process of its own, which `make servers` installs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.tiny_run import episodes, rows
from sleuth.engines.launch import free_ports

VLLM = Path(__file__).parents[1] / ".venv-servers" / "bin" / "vllm"
START_SECONDS = 300.0
LARGEST_KL = 1e-9  # nats a token between sampler and learner, in float32
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
}
ADAPTED = ("--enable-lora", "--max-lora-rank", "8")
"""Arguments of one that takes adapters."""


class RealVllm:
    """`vllm serve MODEL` in float32 with more `arguments` and the context `context`, at `url`; its output is in the
    file `log`."""

    def __init__(self, model: Path, log: Path, *, context: int, arguments: Sequence[str] = ()) -> None:
        self.model = model
        self.arguments = arguments
        self.log = log
        self.context = context
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"

    def start(self) -> None:
        """Starts it and waits until it answers, which takes a minute. Fails the test if it ends or takes too long."""
        if not VLLM.exists():
            pytest.fail(f"{VLLM} is missing; `make servers` installs it", pytrace=False)
        command = [VLLM, "serve", self.model, "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        command += ["--max-model-len", str(self.context), "--dtype", "float32", "--enforce-eager"]
        command += ["--no-enable-chunked-prefill"]  # else it ends when a prompt with a seed is read in parts
        command += self.arguments
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | SETTINGS
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False) as client:
            while not _answers(client, self.url):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                    pytest.fail(f"vLLM did not start:\n{tail}", pytrace=False)
                time.sleep(0.2)

    def kill(self) -> None:
        """Kills all its processes (SIGKILL)."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


def running(model: Path, folder: Path, arguments: Sequence[str] = ()) -> Iterator[RealVllm]:
    """One that serves the model while a fixture waits, with its output in the folder."""
    server = RealVllm(model, folder / "vllm.log", context=512, arguments=arguments)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def require_every_episode_once(folder: Path) -> list[dict[str, Any]]:
    """The figures of four steps. Fails unless each has 4 x 8 episodes, sampled with the learner's weights."""
    steps = [row for row in rows(folder) if row["stage"] == "grpo"]
    for step in steps:
        played = Counter(name for name, _ in episodes(folder, step["step"]))
        assert sorted(Counter(task for task, _ in played).values()) == [8] * 4
        assert set(played.values()) == {1}
    assert len(steps) == 4
    assert sum(step["loss"] is not None for step in steps) >= 2
    assert max(abs(step["sampler_learner_kl"]) for step in steps if step["loss"] is not None) <= LARGEST_KL
    return steps
