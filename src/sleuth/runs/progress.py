"""A progress bar with a note beside it; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from sleuth.host.escapes import escape, escape_terminals, folded
from sleuth.host.threads import to_stderr

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
        to_stderr(folded(line, sys.stderr))


class Console(rich.console.Console):
    """rich's console for text that others wrote: `[bold]` and `:key:` in it are no markup, and on a terminal control
    characters are escaped before rich adds its own."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        self._escape = escape if stream.isatty() else str
        file = getattr(stream, "terminal", stream)
        super().__init__(file=file, quiet=quiet, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """See rich. Before the layout, in which an escape has its width."""
        return super().render_str(self._escape(text), **settings)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """See rich. Text that never was a `str` of this console is escaped here."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else self._escape(text), style, control)


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
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
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
            self._bar.console.print(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def _print_plain_line(self, note: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= PLAIN_LINE_SECONDS or self.done == self.total:
            self._last_line = now
            of = f"/{self.total}" if self.done <= self.total else ""  # which was an estimate
            print(f"{self.name} {self.done}{of} {note}".rstrip() + self._times(now), file=sys.stderr, flush=True)

    def _times(self, now: float) -> str:
        """`, 0:04:10 elapsed, 0:21:30 left`, from the average of what was done since the bar began."""
        elapsed, done = now - self._begin, self.done - self._done_before
        times = [f"{timedelta(seconds=round(elapsed))} elapsed"]
        if done > 0 and self.done <= self.total:
            times.append(f"{timedelta(seconds=round(elapsed / done * (self.total - self.done)))} left")
        return "".join(f", {text}" for text in times)

    def __enter__(self) -> Self:
        self._bar.start()
        if self.console.is_terminal:
            escape_terminals()  # rich has put streams of its own in their place, which take colours and links from text
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


def row_counter(name: str) -> Callable[[int], None]:
    """`progress(done)` for work of unknown length: prints the number of rows at intervals."""
    due = time.monotonic() + DELAY

    def progress(done: int) -> None:
        nonlocal due
        if time.monotonic() > due:
            due = time.monotonic() + PLAIN_LINE_SECONDS
            print_line(f"{name}: {done:,} rows")

    return progress
