"""Ctrl-C (SIGINT) and SIGTERM: how a run ends when its process is asked to."""

from __future__ import annotations

import os
import signal
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

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None:
            if now - self._at > SAME_REQUEST_SECONDS:
                raise Interrupted("interrupted", number)
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

    def end(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted", number)

    with handling((signal.SIGTERM,), end):
        yield


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
