"""Runs every measurement in a new process: a warm heap would favour whichever side comes second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sleuth.host.threads import waiting_variables

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keeps a core busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class JobFailedError(Exception):
    """A measurement that ended with an error; the message is the end of its output."""


def run_fresh(job: str, *, threads: int | None = None, **arguments: Any) -> dict[str, Any]:
    """The result of `jobs.JOBS[job]` in a new interpreter, with `threads` threads if given.

    Both sides get the same environment, except that ours limits how long its threads spin, as its command line does."""
    environment = os.environ | QUIET | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    if arguments.get("side") == "ours":
        environment |= waiting_variables()
    command = [sys.executable, "-m", "benchmarks.jobs", job, json.dumps(arguments, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise JobFailedError(f"{job} {arguments}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
