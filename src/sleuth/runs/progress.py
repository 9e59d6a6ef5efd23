"""A progress bar with a note beside it; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sleuth.threads import to_stderr

DELAY = 1.0
"""Seconds of work before a bar of `progress_bar` is shown."""
PLAIN_LINE_SECONDS = 60.0
"""Seconds between lines where there is no terminal."""
_QUIET = ContextVar("quiet", default=False)


@contextmanager
def quiet(on: bool = True) -> Iterator[None]:
    """If `on`, bars that are made in this context, and `print_line`, print nothing."""
    token = _QUIET.set(on or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)


def print_line(line: str) -> None:
    """Prints a line on stderr, at once, unless `quiet`."""
    if not _QUIET.get():
        to_stderr(line)


class ProgressBar:
    """`with ProgressBar("grpo", total=200) as bar: bar.advance(note="reward 0.31")`. Writes to stderr, or nothing
    if `silent`."""

    def __init__(self, name: str, total: int, done: int = 0, *, silent: bool = False) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.silent = silent or _QUIET.get()
        self.console = Console(stderr=True, quiet=self.silent)
        self._begin, self._done_before = time.monotonic(), done
        self._last_line = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=total, completed=done, note="")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Adds `count` to what is done; `note` replaces the note beside the bar."""
        self.done += count
        self._bar.update(self._task, completed=self.done, note=note)
        if not self.silent and not self.console.is_terminal:
            self._print_plain_line(note)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self.silent:
            return
        if self.console.is_terminal:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _print_plain_line(self, note: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= PLAIN_LINE_SECONDS or self.done >= self.total:
            self._last_line = now
            print(
                f"{self.name} {self.done}/{self.total} {note}".rstrip() + self._times(now), file=sys.stderr, flush=True
            )

    def _times(self, now: float) -> str:
        """`, 0:04:10 elapsed, 0:21:30 left`, from the average of what was done since the bar began."""
        elapsed, done = now - self._begin, self.done - self._done_before
        left = elapsed / done * max(self.total - self.done, 0) if done > 0 else None
        times = [f"{timedelta(seconds=round(elapsed))} elapsed"]
        if left is not None:
            times.append(f"{timedelta(seconds=round(left))} left")
        return "".join(f", {text}" for text in times)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `progress(done, total)`: a bar with the time left, or plain lines where there is no terminal."""
    started, bar = time.monotonic(), None
    with ExitStack() as shown:

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and time.monotonic() - started > DELAY:
                bar = shown.enter_context(ProgressBar(name, total, done))
            if bar is not None:
                bar.advance(done - bar.done)

        yield progress
