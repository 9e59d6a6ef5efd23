"""Progress of long work, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

DELAY = 1.0
"""Seconds of work before anything is shown."""


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `progress(done, total)`: a bar with the time left, or plain lines where there is no terminal."""
    from sleuth.runs.progress import ProgressBar

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
    from sleuth.runs.progress import PLAIN_LINE_SECONDS, print_line

    due = time.monotonic() + DELAY

    def progress(done: int) -> None:
        nonlocal due
        if time.monotonic() > due:
            due = time.monotonic() + PLAIN_LINE_SECONDS
            print_line(f"{name}: {done:,} rows")

    return progress
