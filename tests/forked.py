"""`sleuth` in processes forked from one that has imported all that is heavy: they begin at once, and are otherwise
processes of their own, which are killed, asked to end and read as any other.

As a program, `python forked.py SOCKET ARGUMENT...` is such a process for a shell or a launcher: the one forked for it
has its variables, folder and streams, gets its signals and gives it its status.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

PASSED_ON = (signal.SIGINT, signal.SIGTERM)


@functools.cache
def forking() -> Any:
    """A context whose processes are forked from one that has imported `preloaded`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(path)):  # it does not get our sys.path
        forkserver.ensure_running()
    return context


class ForkedSleuth:
    """`sleuth` with these arguments, with what of subprocess.Popen tests ask for. `streams` are file descriptors of its
    input, output and errors."""

    def __init__(
        self,
        *arguments: str,
        streams: Sequence[int],
        folder: str | Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        place, told = str(folder or Path.cwd()), dict(os.environ if variables is None else variables)
        passed = [Connection(os.dup(stream)) for stream in streams]  # which are pickled with their descriptors
        self._process = forking().Process(target=_run, args=(arguments, place, told, passed))
        self._process.start()
        for one in passed:
            one.close()
        self.pid: int = self._process.pid
        self.sentinel: int = self._process.sentinel
        """Readable once it has ended."""

    def __enter__(self) -> ForkedSleuth:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("sleuth", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)


def _run(arguments: Sequence[str], folder: str, variables: dict[str, str], streams: Sequence[Connection]) -> None:
    """In the forked process."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, 1, closefd=False) for number, mode in enumerate(("r", "w", "w"))
    )
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = ["sleuth", *arguments]
    from sleuth.cli import main

    main()


@functools.cache
def program() -> list[str]:
    """The command that is `sleuth` while this process runs, in whatever folder."""
    forking()
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    place = f"{folder.name}/sleuth.socket"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    threading.Thread(target=_answer_all, args=(listening,), daemon=True).start()
    return [sys.executable, "-IS", __file__, place]


def _answer_all(listening: socket.socket) -> None:
    while True:
        client, _ = listening.accept()
        threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    """Forks a process for a client, passes on its signals, kills what it leaves, and says how it ended."""
    with client, client.makefile("rb") as told:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        asked = json.loads(told.readline())
        process = ForkedSleuth(
            *asked["arguments"], streams=streams, folder=asked["folder"], variables=asked["variables"]
        )
        for stream in streams:
            os.close(stream)
        with selectors.DefaultSelector() as selector:
            selector.register(process.sentinel, selectors.EVENT_READ)
            selector.register(client, selectors.EVENT_READ)
            while process.poll() is None:
                if client in [key.fileobj for key, _ in selector.select()]:
                    number = client.recv(1)
                    process.send_signal(number[0] if number else signal.SIGKILL)
                    if not number:
                        selector.unregister(client)
        with suppress(OSError):
            client.sendall(f"{process.wait()}\n".encode())


def ask(place: str, arguments: Sequence[str]) -> int:
    """The status of `sleuth` with these arguments, forked by who listens at the socket; as a shell counts."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [b"."], [0, 1, 2])
        told = {"arguments": arguments, "folder": os.getcwd(), "variables": dict(os.environ)}
        server.sendall(json.dumps(told).encode() + b"\n")
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        status = int(server.makefile().readline() or 1)
    if status < 0:  # by a signal, so by the same one
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
