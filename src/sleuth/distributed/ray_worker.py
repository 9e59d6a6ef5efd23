"""A rank in a worker of Ray: what it does, and what it tells those who wait for it."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

from sleuth.types import RetrievalFailed, SleuthError, TransientError

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Printed:
    """What the first rank wrote to `stdout` or `stderr`."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """A mistake of the user's, as a rank found it: to start again would not help."""

    line: str


def work_as_rank(told: dict[str, Any]) -> None:
    """A worker's life: what the launcher asked for, where it stood, heard by it where this is the first rank."""
    messages, rank = told["messages"], int(os.environ["RANK"])
    try:
        _stand_in(told["folder"])
        with heard(messages) if rank == 0 else nullcontext():
            told["work"]()
    except SleuthError as error:
        if not isinstance(error, TransientError):
            messages.put(Wrong(str(error)))
        raise


def _stand_in(folder: str) -> None:
    """Relative paths of a recipe are relative to where the command was given, on every machine."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise SleuthError(
            f"{folder}: {error.strerror} on {socket.gethostname()}; the folder of the command, the run, the model and "
            "the data must be at the same paths on all machines"
        ) from None


@contextmanager
def heard(messages: Any) -> Iterator[None]:
    """What is printed goes to those who wait, line by line."""
    with redirect_stdout(_Told("stdout", messages)) as out, redirect_stderr(_Told("stderr", messages)) as err:
        try:
            yield
        finally:
            out.flush()
            err.flush()


class _Told(io.TextIOBase):
    """A stream whose lines are sent."""

    encoding = "utf-8"

    def __init__(self, stream: Stream, messages: Any) -> None:
        self._stream: Stream = stream
        self._messages = messages
        self._held = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._held += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._held:
            self._messages.put(Printed(self._stream, self._held))
            self._held = ""


def endings(of_ranks: Mapping[int, Exception]) -> str:
    """Why ranks ended, in lines; those that lost others are named only where these have not said why."""
    raised = {rank: getattr(error, "_base_exc", None) for rank, error in of_ranks.items()}  # None: no word of its own
    first = {rank: error for rank, error in raised.items() if not isinstance(error, TransientError)} or raised
    return "".join(f"rank {rank}: {_cause(first[rank], of_ranks[rank])}\n" for rank in sorted(first))


def _cause(raised: BaseException | None, error: Exception) -> str:
    if raised is None:
        return "its process is gone; it was killed, or its machine is gone too"
    if isinstance(raised, SleuthError | RetrievalFailed | OSError):
        return " ".join(str(raised).split())
    return str(error).rstrip()  # with its traceback
