"""A process that renders chat templates with limits on time, memory and the length of their text.

A template is a program by whoever published the model. Jinja's sandbox keeps it from files and attributes, but not from
loops without end or from texts of gigabytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from functools import cache
from threading import Lock
from typing import Any

from sleuth.episodes import render_worker
from sleuth.types import SleuthError

START_SECONDS = 30.0
"""How long the process may take to import what it renders with."""


class RenderProcess:
    """The process that renders; a context manager. It ends when a template reaches a limit."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reader = ThreadPoolExecutor(1)
        self._process = subprocess.Popen(
            [sys.executable, "-P", render_worker.__file__],  # -P: its folder is not imported from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for us: an interrupted run still renders until its step ends
        )

    def __enter__(self) -> RenderProcess:
        if not self._answer(START_SECONDS):
            self.close()
            raise SleuthError("the process that renders chat templates did not start; is transformers installed whole?")
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def has_ended(self) -> bool:
        """Whether a template reached a limit."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.shutdown()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def rendered(self, request: Mapping[str, Any], seconds: float) -> dict[str, str]:
        """What `render_worker.rendered` returns for a request; a `limit` if it takes longer than `seconds`."""
        with self._lock:
            if self._process.stdin is None or self.has_ended:
                return {"limit": "an earlier rendering reached a limit"}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._answer(seconds)
            if answer:
                return json.loads(answer)
            if answer is not None and self._process.wait() != -render_worker.LATE:
                return {"limit": render_worker.TOO_MUCH_MEMORY}
        return {"limit": f"it does not end within {seconds if answer is None else render_worker.CPU_SECONDS:.0f} s"}

    def _answer(self, seconds: float) -> str | None:
        """The next line of the process; empty if it has ended, None if it was late and was ended."""
        stream = self._process.stdout
        assert stream is not None
        waiting = self._reader.submit(stream.readline)
        try:
            return waiting.result(seconds)
        except BaseException as error:
            self._process.kill()  # else the thread that reads would keep an interrupted process from its end
            waiting.result()
            self._process.wait()  # else it would seem to run, and be asked again
            if isinstance(error, Late):
                return None
            raise


def shared_process() -> RenderProcess:
    """The process that renders for this one. It is started when it is needed, and again after a limit."""
    process = _started(os.getpid())  # a forked process has no reader
    if process.has_ended:
        _started.cache_clear()
        process.close()
        process = _started(os.getpid())
    return process


@cache
def _started(pid: int) -> RenderProcess:
    return RenderProcess().__enter__()
