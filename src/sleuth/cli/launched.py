"""A verb that a launcher started in several processes: one of them speaks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sleuth.cli.statuses import WRONG_INPUT
from sleuth.ranks import Ranks
from sleuth.types import SleuthError

QUIET_SECONDS = 5.0
"""What stops one rank often stops all: the others leave the first so long to say it, and are ended with it."""


@contextmanager
def on_ranks() -> Iterator[Ranks]:
    """The ranks of a launcher, or a world of one. What only another rank than the first found wrong is told as its; of
    what the first tells, others are silent."""
    from sleuth.distributed.group import RAISED_BY_FIRST, join_ranks

    rank = int(os.environ.get("RANK", "0"))
    try:
        with join_ranks() as ranks:
            yield ranks
    except SleuthError as error:
        if rank == 0:
            raise
        time.sleep(QUIET_SECONDS)
        if RAISED_BY_FIRST in getattr(error, "__notes__", ()):
            raise typer.Exit(WRONG_INPUT) from None
        raise type(error)(f"rank {rank}: {error}") from None
