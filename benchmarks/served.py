"""A `sleuth` server, or an emulated vLLM or SGLang, in its own process, at a free or a given port, for the length of
a context."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx

from sleuth.engines.launch import SGLANG_RESERVED

EMULATOR = Path(__file__).parents[1] / "tests" / "emulator"
Served = AbstractContextManager[tuple[str, subprocess.Popen[str]]]


def emulated(kind: str, model: Path, *arguments: str, context: int, port: int = 0) -> Served:
    """As `served`, for a server that emulates `kind`, "vllm" or "sglang", and takes texts of `context` tokens; the
    arguments are those of the emulator."""
    length = context + SGLANG_RESERVED if kind == "sglang" else context
    where = ("--context", str(length), "--port", str(port))
    return _answering([sys.executable, "-u", str(EMULATOR), kind, str(model), *where, *arguments])


def served(*arguments: str, core: int | None = None, port: int = 0) -> Served:
    """Runs `sleuth ARGUMENTS` (`serve`, `retriever`), on one core if given; yields its address once it answers, and its
    process. Raises RuntimeError if it ends before that."""
    pinned = f"import os; os.sched_setaffinity(0, {{{core}}}); " if core is not None else ""
    script = f"{pinned}import sys; sys.argv[0] = 'sleuth'; from sleuth.cli import main; main()"
    return _answering([sys.executable, "-u", "-c", script, *arguments, "--port", str(port)])


@contextmanager
def _answering(command: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with (
        httpx.Client(trust_env=False) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process,
    ):  # Ctrl-C is for who asks; the server is ended below
        assert process.stdout is not None
        words = process.stdout.readline().split()
        url = next((word.rstrip("/") for word in words if word.startswith("http://")), "")
        try:
            while not _answers(client, url):
                if process.poll() is not None:
                    raise RuntimeError("the server ended")
                time.sleep(0.05)
            yield url, process
        finally:
            process.terminate()


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False
