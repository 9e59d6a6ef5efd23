"""A rank as a worker of Ray: runs the work and sends output and errors to the launching process."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

from sleuth.own.permission import CODE
from sleuth.runs.interruption import Interrupted, forwarded_to
from sleuth.types import RetrievalFailed, SleuthError, TransientError

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Printed:
    """Text that rank 0 wrote to `stdout` or `stderr`."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class UserError:
    """A SleuthError of a rank that a restart would not fix, and of which kind it is."""

    line: str
    kind: type[SleuthError] = SleuthError


@dataclass(frozen=True, slots=True)
class Stopped:
    """The ranks ended because of the signal `number`, with a line for the user."""

    line: str
    number: int


def work_as_rank(config: dict[str, Any]) -> None:
    """Runs `config["work"]` in `config["folder"]`; rank 0 forwards its output to the queue `config["messages"]`.
    The number of a signal that the launching process got is in the file `config["signal"]`; `config["code"]` is what it
    may run."""
    messages, rank = config["messages"], int(os.environ["RANK"])
    CODE.take(config["code"])
    try:
        _change_folder(config["folder"])
        with forward_output(messages) if rank == 0 else nullcontext(), forwarded_to(config["signal"]):
            config["work"]()
    except Interrupted as stopped:  # the work is done as far as Ray is concerned
        if rank == 0:
            messages.put(Stopped(str(stopped), stopped.number))
    except SleuthError as error:
        if not isinstance(error, TransientError):
            messages.put(UserError(str(error), type(error)))
        raise


def _change_folder(folder: str) -> None:
    """Changes to the launcher's working folder, to which a recipe's paths are relative on every machine."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise SleuthError(
            f"{folder}: {error.strerror} on {socket.gethostname()}; working folder, run, model and data must be at the "
            "same paths on all machines"
        ) from None


@contextmanager
def forward_output(messages: Any) -> Iterator[None]:
    """In this context, printed text goes to the queue `messages`, line by line."""
    with (
        redirect_stdout(_QueueStream("stdout", messages)) as out,
        redirect_stderr(_QueueStream("stderr", messages)) as err,
    ):
        try:
            yield
        finally:
            out.flush()
            err.flush()


class _QueueStream(io.TextIOBase):
    """A text stream whose lines go to a queue."""

    encoding = "utf-8"

    def __init__(self, stream: Stream, messages: Any) -> None:
        self._stream: Stream = stream
        self._messages = messages
        self._buffer = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._buffer += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._buffer:
            self._messages.put(Printed(self._stream, self._buffer))
            self._buffer = ""


def describe_failures(errors: Mapping[int, Exception]) -> str:
    """One line per failed rank with its reason; ranks that only lost others are left out if there is another reason."""
    raised = {rank: getattr(error, "_base_exc", None) for rank, error in errors.items()}  # None: the process died
    causes = {rank: error for rank, error in raised.items() if not isinstance(error, TransientError)} or raised
    return "".join(f"rank {rank}: {_cause(causes[rank], errors[rank])}\n" for rank in sorted(causes))


def _cause(raised: BaseException | None, error: Exception) -> str:
    if raised is None:
        return "its process is gone; it was killed, or its machine failed"
    if isinstance(raised, SleuthError | RetrievalFailed | OSError):
        return " ".join(str(raised).split())
    return str(error).rstrip()  # with its traceback
