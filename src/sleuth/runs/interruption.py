"""Ctrl-C (SIGINT) and SIGTERM: how a run ends when its process is asked to."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Self

from sleuth.ranks import Ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_SECONDS = 0.5
"""A signal that follows so soon is the same request: `timeout` and some launchers send each signal twice."""

ENDING_SECONDS = 20.0
"""How long a program may take to end by itself after a signal, with what it cancels, closes and removes on its way."""

_FORWARDED: ContextVar[Path | None] = ContextVar("forwarded", default=None)

Handler = Callable[[int, FrameType | None], object]


class Interrupted(KeyboardInterrupt):
    """The process was asked to end by the signal `number`. The message is for the user; it is empty on ranks other than
    the first, which prints it for all."""

    def __init__(self, line: str, number: int) -> None:
        super().__init__(line if os.environ.get("RANK", "0") == "0" else "")
        self.number = number

    @property
    def status(self) -> int:
        """The exit status of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


class StopRequest:
    """`with StopRequest(say) as request:` In this context the first signal only sets `number`, and `say` gets a line
    about it; the second one raises Interrupted. Within `forwarded_to(file)` the file is read, too."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.number: int | None = None
        self._say = say
        self._forwarded = _FORWARDED.get()
        self._at = 0.0
        self._handlers = ExitStack()

    def agreed(self, ranks: Ranks) -> int | None:
        """The signal that any rank has received, the same on all ranks; None if there is none. Every rank calls it."""
        if self.number is None and self._forwarded is not None:
            with suppress(OSError, ValueError):  # no file, or one that is being written
                self._receive(int(self._forwarded.read_text()), None)
        return max(ranks.all_gather([self.number or 0])) or None

    def __enter__(self) -> Self:
        self._handlers.enter_context(handling(SIGNALS, self._receive))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Interrupted):
            _PROGRAM.begin_to_end(self.number or signal.SIGTERM)
        self._handlers.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None:
            if now - self._at > SAME_REQUEST_SECONDS:
                interrupt(number)
            return
        self.number, self._at = number, now
        line = f"{signal.Signals(number).name}: finishing the step, then saving; a second one ends at once"
        Thread(target=self._say, args=(line,), daemon=True).start()  # the signal may have come in the middle of a print


@contextmanager
def forwarded_to(file: Path) -> Iterator[None]:
    """In this context a StopRequest also takes the number of a signal from the file, where a launcher that receives the
    signals in place of this process writes it."""
    token = _FORWARDED.set(file)
    try:
        yield
    finally:
        _FORWARDED.reset(token)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """In this context SIGTERM raises Interrupted, as Ctrl-C raises KeyboardInterrupt."""
    with handling((signal.SIGTERM,), interrupt):
        yield


def end_at_signals() -> None:
    """From now on SIGINT and SIGTERM end this process, whatever it does: for the main function of a program.

    The first one raises Interrupted. What fails on the way out because of it prints nothing. A second one within
    SAME_REQUEST_SECONDS is the same request; a later one ends the process as it is, and so do ENDING_SECONDS. Nothing
    is lost then: files are written whole or not at all."""
    _PROGRAM.runs = True
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def ignore_signals() -> None:
    """From now on SIGINT and SIGTERM do nothing: this process ends, and has said why."""
    _PROGRAM.silent = True
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def interruption() -> Interrupted | None:
    """The Interrupted that ends this program; None before its first signal."""
    return None if _PROGRAM.number is None else Interrupted("interrupted", _PROGRAM.number)


def interrupt(number: int, frame: FrameType | None = None) -> None:
    """Handles a signal: raises Interrupted, in a program once (see `end_at_signals`)."""
    if _PROGRAM.began is not None:
        if time.monotonic() - _PROGRAM.began > SAME_REQUEST_SECONDS:
            _PROGRAM.end(number)
        return
    _PROGRAM.begin_to_end(number)
    raise Interrupted("interrupted", number)


class _Program:
    """How far this process is on its way out. `began` is None before its first signal, and for ever where no program of
    ours `runs`, such as in a notebook. Once `silent`, its last line is printed."""

    def __init__(self) -> None:
        self.runs = self.silent = False
        self.began: float | None = None
        self.number: int | None = None

    def begin_to_end(self, number: int) -> None:
        if not self.runs or self.began is not None:
            return
        self.began, self.number = time.monotonic(), number
        sys.unraisablehook = lambda raised: self.end(number) if isinstance(raised.exc_value, Interrupted) else None
        threading.excepthook = lambda _: None
        if "asyncio" in sys.modules:  # it would log the exceptions of tasks that nobody waits for any more
            sys.modules["asyncio"].log.logger.disabled = True
        _thread.start_new_thread(self._end_late, (number,))  # `Thread` takes locks that this thread may hold

    def end(self, number: int) -> None:
        """Ends the process as it is."""
        if not self.silent and (line := str(Interrupted("interrupted", number))):
            os.write(2, f"{line}\n".encode())
        os._exit(128 + number)

    def _end_late(self, number: int) -> None:
        time.sleep(ENDING_SECONDS)
        self.end(number)


_PROGRAM = _Program()


@contextmanager
def handling(numbers: tuple[signal.Signals, ...], handler: Handler) -> Iterator[None]:
    """Calls `handler` for these signals. A signal that the process ignores, as in the background of a script, stays
    ignored. Only the main thread can handle signals; in another one this does nothing."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    if current_thread() is not main_thread():
        handled = []
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
