"""Progress of long work, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

DELAY = 1.0
"""Seconds of work before a count is shown."""


def progress_bar(name: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """As `sleuth.runs.progress.progress_bar`, which is imported when it is used."""
    from sleuth.runs.progress import progress_bar as bar

    return bar(name)


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
