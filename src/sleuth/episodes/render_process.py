"""A process that renders chat templates with limits on time, memory and the length of their text.

A template is a program by whoever published the model. Jinja's sandbox keeps it from files and attributes, but not from
loops without end or from texts of gigabytes. The process runs this file, which imports nothing of the package then.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import Any

CPU_SECONDS = 2.0
"""How long one rendering may compute; published templates take milliseconds."""
MEMORY_BYTES = 4 << 30
"""Address space of the process, its libraries included."""
CHARACTERS = 1_000_000
"""Longest text beyond that of the messages, which are a few hundred characters and placeholders."""
TOO_MUCH_MEMORY = f"it needs more than {MEMORY_BYTES >> 30} GB of memory"


class RenderProcess:
    """The process that renders. It ends when a template reaches a limit. Raises SleuthError if it does not start."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],  # -P: its folder is not imported from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for us: an interrupted run still renders until its step ends
        )
        if not self._answer():
            from sleuth.types import SleuthError  # not at the top: the process runs this file too

            raise SleuthError("the process that renders chat templates did not start; is transformers installed whole?")

    @property
    def has_ended(self) -> bool:
        """Whether a template reached a limit."""
        return self._process.poll() is not None

    def rendered(self, request: Mapping[str, Any], seconds: float = CPU_SECONDS) -> dict[str, str]:
        """What `_rendered` returns for a request; a `limit` if it computes for longer than `seconds`."""
        with self._lock:
            if self._process.stdin is None or self.has_ended:
                return {"limit": "an earlier rendering reached a limit"}
            self._process.stdin.write(json.dumps({**request, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
            if answer := self._answer():
                return json.loads(answer)
            late = self._process.wait() == -signal.SIGPROF
            return {"limit": f"it does not end within {seconds:.0f} s" if late else TOO_MUCH_MEMORY}

    def _answer(self) -> str:
        """The next line of the process; empty if it has ended."""
        assert self._process.stdout is not None
        try:
            return self._process.stdout.readline()
        except BaseException:  # an interrupt: the line would be read as the answer to the next request
            self._process.kill()
            self._process.wait()
            raise


def shared_process() -> RenderProcess:
    """The process that renders for this one. It is started when it is needed, and again after a limit."""
    if _started(os.getpid()).has_ended:
        _started.cache_clear()
    return _started(os.getpid())  # a forked process has one of its own


@cache
def _started(pid: int) -> RenderProcess:
    return RenderProcess()


# -- in the process ----------------------------------------------------------------------------------------------------


def _rendered(request: dict[str, Any]) -> dict[str, str]:
    """`{"text": ...}`; `{"error": ...}` if the template raises, `{"limit": ...}` if it writes or needs too much."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text], _ = render_jinja_template(
            [request["messages"]],
            tools=request["tools"],
            chat_template=request["source"],
            add_generation_prompt=request["prompt"],
            **request["variables"],
        )
    except MemoryError:
        return {"limit": TOO_MUCH_MEMORY}
    except Exception as error:  # templates raise whatever Python does
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}
    if len(text) > CHARACTERS + sum(len(str(message)) for message in request["messages"]):
        return {"limit": f"it writes {len(text):,} characters for a few lines of conversation"}
    return {"text": text}


def _main() -> None:
    """Answers requests, one JSON object a line, until stdin ends; the first line says that the libraries are there."""
    import transformers.utils.chat_template_utils  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # then the system ends this process
        answer = json.dumps(_rendered(request))
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(answer, flush=True)


if __name__ == "__main__":
    _main()
