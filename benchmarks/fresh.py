"""Every measurement runs in a process of its own: a warm heap flatters whoever comes second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


class JobFailedError(Exception):
    """A measurement ended with an error; the message is the end of what it wrote."""


def run_fresh(job: str, **arguments: Any) -> dict[str, Any]:
    """What `jobs.JOBS[job]` returns when a new interpreter runs it. Both sides get the same environment."""
    command = [sys.executable, "-m", "benchmarks.jobs", job, json.dumps(arguments, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET, check=False)
    if done.returncode:
        raise JobFailedError(f"{job} {arguments}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
