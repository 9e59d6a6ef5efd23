"""`sleuth` on two ranks, as a person starts it."""

from __future__ import annotations

import subprocess
import sys

from forked import program

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """By torchrun."""
    return started([*LAUNCHER, "-m", "--", "sleuth", *arguments])


def torchrun_forking(*arguments: str) -> subprocess.Popen[str]:
    """By torchrun, whose ranks are forked from a process with their imports instead of making them again."""
    return started([*LAUNCHER, "--no-python", "--", *program(), *arguments])


def on_ray(*arguments: str) -> subprocess.Popen[str]:
    """By a Ray of this machine."""
    return started([sys.executable, "-m", "sleuth", *arguments, "--ray", "local", "--ranks", "2"])


def started(command: list[str]) -> subprocess.Popen[str]:
    """A process, all that it says together."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What it said, when it has ended."""
    said, _ = process.communicate(timeout=600)
    return said
