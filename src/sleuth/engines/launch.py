"""The vLLM and SGLang processes of a run: their command lines and environments, start, wait and end."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from sleuth.engines import supervisor
from sleuth.host.connections import RequestFailedError, ask_within
from sleuth.own.permission import CODE
from sleuth.types import SleuthError

HOST = "127.0.0.1"
GB = 10**9
CPU_CACHE = GB
"""Bytes of the KV cache of a server on a CPU, where the recipe names none."""
CPU_BATCHED_TOKENS = 4096
"""Tokens of a step of a vLLM on a CPU, which must not split a prompt: after a part of one, vLLM 0.32.0 sets back the
generator of a request that has a seed, which torch cannot do on a CPU, and the server ends (seen)."""
SGLANG_RESERVED = 6
"""Tokens of its context that SGLang fills with no prompt: it refuses one from `--context-length` minus 6 on."""

FOREIGN = ("PYTHONPATH", "PYTHONHOME", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
FOREIGN += ("LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
"""Variables of the trainer that would mislead a server: its modules, and its place among the trainer's ranks."""

START_SECONDS = 1800.0
"""How long a server may take until it answers: a large model is read from a slow disk, and graphs are captured."""
PROGRESS_SECONDS = 15.0
POLL_SECONDS = 0.25
HEALTH_SECONDS = 5.0
END_SECONDS = supervisor.END_SECONDS + supervisor.KILL_SECONDS + 2.0
TAIL_BYTES = 64 * 1024

REMEDIES = {
    r"No available memory for the cache|KV cache (memory )?is needed|larger than the available KV cache|out of memory"
    r"|Free memory on device|Not enough memory|smaller than the (model|weights)|Invalid memory": (
        "the model is too large for the memory given: raise engine.memory, or lower the stage's context"
    ),
    r"[Aa]ddress already in use": "another process took the port: leave engine.port out, which takes a free one",
    r"unrecognized arguments|invalid choice|no such option|No such option": (
        "this version does not know the argument: change engine.arguments, or install another version"
    ),
    r"No module named": "the environment of engine.command lacks a package: install the server there again",
}
"""What to do, by what the log of a server that ended says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a server is started with.

    `program` is the command without arguments. `card` is what CUDA_VISIBLE_DEVICES calls its card; None: the CPU;
    several, "4,5", split the model. `memory` are its bytes of each card's `card_memory`, or of the KV cache on a CPU;
    None: its own default.
    `scaled`: its log-probabilities are asked for after temperature.

    `Launch(kind="vllm", program=("vllm",), model="models/tiny-base", port=30000, context=512, dtype="float32",
    requests=64, card="0", memory=40_000_000_000, card_memory=80_000_000_000, sleeps=True)`.
    """

    kind: Literal["vllm", "sglang"]
    program: Sequence[str]
    model: str
    port: int
    context: int
    dtype: str
    requests: int
    card: str | None = None
    memory: int | None = None
    card_memory: int = 0
    sleeps: bool = False
    scaled: bool = False
    arguments: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def command(self) -> list[str]:
        """The command line. The recipe's own `arguments` come last, so that they override the others."""
        line = _vllm_arguments(self) if self.kind == "vllm" else _sglang_arguments(self)
        if split := (self.card or "").count(","):
            line += ["--tensor-parallel-size", str(split + 1)]
        return [*self.program, *line, *self.arguments]

    def memory_option(self, name: str) -> list[str]:
        """Its share of the card, rounded down to a hundredth; nothing: the server's default."""
        if self.memory is None or not self.card_memory:
            return []
        return [name, f"{max(1, math.floor(100 * self.memory / self.card_memory)) / 100:.2f}"]

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """The variables of a server that a process with the variables `ours` starts: its card, the endpoints that
        training needs, and nothing sent to anybody. Settings that are there already win, except those of the card."""
        kept = {name: value for name, value in ours.items() if name not in FOREIGN}
        kept = {name: value for name, value in kept.items() if not name.startswith("TORCHELASTIC_")}
        if self.kind == "vllm":
            settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
            if "--enable-lora" in self.arguments:
                settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
            on_cpu = {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil((self.memory or CPU_CACHE) / GB))),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        else:  # `SGLANG_RESERVED` may exceed the positions of the model, and no request goes there
            settings = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
            on_cpu = {"SGLANG_USE_CPU_ENGINE": "1"}  # else it takes layers of vLLM's, and of GPUs
        if Path(self.model).is_dir():
            settings["HF_HUB_OFFLINE"] = "1"
        if self.card is None:
            return settings | on_cpu | kept
        return settings | kept | {"CUDA_VISIBLE_DEVICES": self.card}


def _vllm_arguments(launch: Launch) -> list[str]:
    line = ["serve", launch.model, "--host", HOST, "--port", str(launch.port)]
    line += ["--max-model-len", str(launch.context), "--dtype", launch.dtype, "--max-num-seqs", str(launch.requests)]
    if launch.scaled:
        line += ["--logprobs-mode", "processed_logprobs"]
    if launch.card is None:
        at_once = str(max(CPU_BATCHED_TOKENS, launch.context))
        return [*line, "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", at_once]
    return [*line, *launch.memory_option("--gpu-memory-utilization"), *["--enable-sleep-mode"] * launch.sleeps]


def _sglang_arguments(launch: Launch) -> list[str]:
    context = launch.context + SGLANG_RESERVED
    line = ["-m", "sglang.launch_server", "--model-path", launch.model, "--host", HOST, "--port", str(launch.port)]
    line += ["--context-length", str(context), "--dtype", launch.dtype]
    line += ["--max-running-requests", str(launch.requests)]
    if launch.card is None:
        cache = str(launch.requests * context)  # by default most of the machine's free memory, which it touches
        return [*line, "--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", cache]
    return [*line, *launch.memory_option("--mem-fraction-static"), *["--enable-memory-saver"] * launch.sleeps]


def is_cpu_build(program: str) -> bool:
    """Whether the vLLM whose command this is was built for CPUs: the distribution `vllm-cpu` lies in its
    environment."""
    environment = Path(os.path.abspath(program)).parent.parent
    return any(environment.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))


class ServerProcess:
    """A server under a supervisor of its own, which restarts it, and ends it when this process ends. Its output is
    appended to the file `log`."""

    def __init__(self, name: str, launch: Launch, log: Path) -> None:
        self.name = name
        self.launch = launch
        self.log = log
        self.supervisor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; does not wait until it answers. Raises CodeRefusedError if it may not run here."""
        CODE.announce(f"starts {' '.join([*self.launch.program, *self.launch.arguments])}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        supervised = [str(os.getpid()), str(self.launch.port), *self.launch.command]
        with self.log.open("ab") as log:
            log.write(f"supervisor: {' '.join(supervised[2:])}\n".encode())
            log.flush()
            self.supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *supervised],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.launch.environment(os.environ),
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether it ended, and is not started again."""
        return self.supervisor is not None and self.supervisor.poll() is not None

    def answers(self) -> bool:
        """Whether it is ready to generate."""
        try:
            return ask_within(HEALTH_SECONDS, "GET", f"{self.launch.url}/health").status == HTTPStatus.OK
        except (RequestFailedError, TimeoutError):
            return False

    def last_lines(self) -> list[str]:
        """The end of its log, without empty lines."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def start_all(servers: Sequence[ServerProcess], say: Callable[[str], None], seconds: float = START_SECONDS) -> None:
    """Starts the servers and waits until all answer, with a line now and then. Raises SleuthError, after ending all of
    them, if one ends or takes longer than `seconds`."""
    with ExitStack() as undo:
        undo.callback(end_all, servers)
        for server in servers:
            server.start()
            say(f"{server.name}: {' '.join(server.launch.command)}")
        started = said = time.monotonic()
        waiting = list(servers)
        while waiting:
            for server in [server for server in waiting if not server.has_ended and server.answers()]:
                say(f"{server.name}: answers at {server.launch.url} after {time.monotonic() - started:.0f} s")
                waiting.remove(server)
            for server in waiting:
                if server.has_ended:
                    raise SleuthError(start_problem(server, "ended while it started"))
            if waiting and time.monotonic() - started > seconds:
                raise SleuthError(start_problem(waiting[0], f"does not answer after {seconds:g} s"))
            if waiting and time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                lines = waiting[0].last_lines()
                names = ", ".join(server.name for server in waiting)
                say(f"{names}: starting, {said - started:.0f} s: {lines[-1][:160] if lines else 'no output yet'}")
            time.sleep(POLL_SECONDS if waiting else 0.0)
        undo.pop_all()


def end_all(servers: Sequence[ServerProcess]) -> None:
    """Ends all servers and every process that they started, by their supervisors."""
    supervisors = [server.supervisor for server in servers if server.supervisor is not None]
    for process in supervisors:
        assert process.stdin is not None  # a pipe
        with suppress(OSError):
            process.stdin.close()
    for process in supervisors:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_problem(server: ServerProcess, what: str) -> str:
    """A line about a server that did not start: the line of its log that says why, and what to do where that is
    known."""
    lines = server.last_lines()
    began = max((at for at, line in enumerate(lines) if line.startswith("supervisor: ")), default=-1)
    lines = lines[began + 1 :]
    for pattern, remedy in REMEDIES.items():
        if line := next((line for line in reversed(lines) if re.search(pattern, line)), None):
            return f"engine.launch: {server.name} {what}: {line[-300:]}; {remedy} ({server.log})"
    errors = [line for line in lines if re.search(r"\w*(Error|error)\b: ", line) and "See root cause" not in line]
    line = (errors or lines or ["it printed nothing"])[-1]
    return f"engine.launch: {server.name} {what}: {line[-300:]} ({server.log})"


def free_ports(count: int, first: int | None = None) -> list[int]:
    """So many ports on which nobody listens: from `first` on, or any. Raises SleuthError if one of them is taken."""
    with ExitStack() as held:
        ports = []
        for at in range(count):
            bound = held.enter_context(socket.socket())
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((HOST, 0 if first is None else first + at))
            except (OSError, OverflowError) as error:
                raise SleuthError(
                    f"engine.port: {(first or 0) + at} cannot be taken ({getattr(error, 'strerror', None) or error}); "
                    "name another one, or leave engine.port out, which takes a free one"
                ) from None
            ports.append(bound.getsockname()[1])
    return ports
