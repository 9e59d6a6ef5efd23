"""Runs what a newcomer runs with the `sleuth` of this Python, in a temporary folder, and reads what goes to stderr:
exit status 1 if a command fails, or if a library warns or reports leaked objects there.

.venv-newest/bin/python tools/quiet.py     with the newest libraries that pyproject.toml allows (`make newest`)
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

COMMANDS = (
    "world world",
    "init mine --corpus world/corpus.jsonl --questions world/qa_train.jsonl",
    "check recipe mine/recipe.toml",
    "plan mine/recipe.toml",
    "train mine/recipe.toml --set grpo.stop_after=2",
    'demo --real --ask "Who wrote the opera Carmen?"',
)
NOISE = re.compile(r"warn|deprecat|leak|traceback|error|exception|nanobind", re.IGNORECASE)


def noise_of(sleuth: Path, command: str, folder: str) -> list[str]:
    """What is wrong with a command: how it failed, or the lines of its stderr that are not progress."""
    done = subprocess.run([sleuth, *shlex.split(command)], cwd=folder, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    if done.returncode:
        return [f"exit status {done.returncode}", *lines[-20:]]
    return [line for line in lines if NOISE.search(line)]


def main(sleuth: Path) -> int:
    """The exit status."""
    noisy = False
    with TemporaryDirectory(prefix="sleuth-quiet-") as folder:
        for command in COMMANDS:
            lines = noise_of(sleuth, command, folder)
            noisy |= bool(lines)
            print(f"sleuth {command}: {'; '.join(lines) if lines else 'quiet'}", flush=True)
    return int(noisy)


if __name__ == "__main__":
    sys.exit(main(Path(sys.executable).with_name("sleuth")))
