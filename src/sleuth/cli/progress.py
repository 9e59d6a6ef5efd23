"""Work that takes a while, made visible."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

BAR_AFTER = 1.0  # seconds; what is done by then needs no bar


@contextmanager
def watched(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `progress(done, total)`: a bar on stderr with the time left, or plain lines where there is no terminal."""
    from sleuth.runs.progress import ProgressBar

    started, bar = time.monotonic(), None
    with ExitStack() as shown:

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and time.monotonic() - started > BAR_AFTER:
                bar = shown.enter_context(ProgressBar(name, total, done))
            if bar is not None:
                bar.advance(done - bar.done)

        yield progress


def counted(name: str) -> Callable[[int], None]:
    """`progress(done)` for work whose end is not known: a count on stderr, after a second and then now and again."""
    from sleuth.runs.progress import PLAIN_LINE_SECONDS

    due = time.monotonic() + BAR_AFTER

    def progress(done: int) -> None:
        nonlocal due
        if time.monotonic() > due:
            due = time.monotonic() + PLAIN_LINE_SECONDS
            print(f"{name}: {done:,} rows", file=sys.stderr, flush=True)

    return progress
