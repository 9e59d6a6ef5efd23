"""The server processes of a run: started, waited for, and ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path

from sleuth.engines.launch import supervisor
from sleuth.engines.launch.command import HOST, Launch, command_of, environment_of
from sleuth.host.connections import RequestFailedError, ask_within
from sleuth.own.permission import CODE
from sleuth.types import SleuthError

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


class ServerProcess:
    """A server under a supervisor of its own, which restarts it, and ends it when this process ends. Its output is
    appended to the file `log`."""

    def __init__(self, name: str, launch: Launch, log: Path) -> None:
        self.name = name
        self.launch = launch
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; does not wait until it answers. Raises CodeRefusedError if it may not run here."""
        CODE.announce(f"starts {' '.join([*self.launch.program, *self.launch.arguments])}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        supervised = [str(os.getpid()), str(self.launch.port), *command_of(self.launch)]
        with self.log.open("ab") as log:
            log.write(f"supervisor: {' '.join(supervised[2:])}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *supervised],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment_of(self.launch, os.environ),
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether it ended, and is not started again."""
        return self._process is not None and self._process.poll() is not None

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

    def close_pipe(self) -> None:
        """Asks the supervisor to end it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def wait(self) -> None:
        """Waits until it has ended, after `close_pipe`."""
        if self._process is None:
            return
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_all(servers: Sequence[ServerProcess], say: Callable[[str], None], seconds: float = START_SECONDS) -> None:
    """Starts the servers and waits until all answer, with a line now and then. Raises SleuthError, after ending all of
    them, if one ends or takes longer than `seconds`."""
    with ExitStack() as undo:
        undo.callback(end_all, servers)
        for server in servers:
            server.start()
            say(f"{server.name}: {' '.join(command_of(server.launch))}")
        _wait_for_all(servers, say, seconds)
        undo.pop_all()


def _wait_for_all(servers: Sequence[ServerProcess], say: Callable[[str], None], seconds: float) -> None:
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


def end_all(servers: Sequence[ServerProcess]) -> None:
    """Ends all servers and every process that they started."""
    for server in servers:
        server.close_pipe()
    for server in servers:
        server.wait()


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
