"""Two real servers, one of which is killed and started again while a pool of clients asks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sleuth.retrieval.remote import Remote
from sleuth.types import Passage

CLIENTS = 32


def started(folder: Path, port: int) -> subprocess.Popen[bytes]:
    script = "import sys; sys.argv[0] = 'sleuth'; from sleuth.cli import main; main()"
    command = [sys.executable, "-c", script, "retriever", str(folder), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def wait(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError(f"{url} never became ready")


@pytest.fixture
def pair(towns: Path) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[int]]]:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    processes = [started(towns, port) for port in ports]
    for port in ports:
        wait(f"http://127.0.0.1:{port}")
    yield processes, ports
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("requests", "kills"), [(1200, 1), pytest.param(10_000, 3, marks=pytest.mark.slow)])
def test_no_search_fails_while_one_of_two_replicas_is_killed_and_restarted(
    pair: tuple[list[subprocess.Popen[bytes]], list[int]], towns: Path, requests: int, kills: int
) -> None:
    processes, ports = pair
    pool = Remote([f"http://127.0.0.1:{port}" for port in ports], 10)

    async def client(numbers: Iterator[int]) -> list[list[Passage]]:
        return [(await pool.search([f"Town {number}"], 1))[0] for number in numbers]

    async def everybody() -> list[list[Passage]]:
        numbers = iter(range(requests))

        async def disturb() -> None:
            for _ in range(kills):
                await asyncio.sleep(0.1)
                os.kill(processes[0].pid, signal.SIGKILL)
                processes[0].wait()
                processes[0] = started(towns, ports[0])
                await asyncio.to_thread(wait, f"http://127.0.0.1:{ports[0]}")

        answers, _ = await asyncio.gather(asyncio.gather(*(client(numbers) for _ in range(CLIENTS))), disturb())
        return [found for part in answers for found in part]

    answers = asyncio.run(everybody())
    assert len(answers) == requests
    assert all(len(found) == 1 for found in answers)
