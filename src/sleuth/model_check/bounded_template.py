"""A chat template that renders in a process of its own, with limits on time, memory and the length of its text.

A template is a program by whoever published the model. Jinja's sandbox keeps it from files and attributes, but not from
loops without end or from texts of gigabytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.model_check import render_worker
from sleuth.types import SleuthError

START_SECONDS = 30.0
"""How long the process may take to import what it renders with."""
RENDER_SECONDS = 5.0
ALL_SECONDS = 20.0
"""How long one rendering may take, and all of them together. Published templates take milliseconds."""

Messages = Sequence[Mapping[str, Any]]


class TemplateRefusedError(Exception):
    """The template raised an error for these messages; the argument is its message, on one line."""


class TemplateLimitError(Exception):
    """The template reached a limit and cannot be used again; the argument says which."""


class RenderProcess:
    """The process that renders; a context manager. It ends when a template reaches a limit."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1)
        self._process = subprocess.Popen(
            [sys.executable, "-P", render_worker.__file__],  # -P: its folder is not imported from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> RenderProcess:
        if not self._answer(START_SECONDS):
            self.close()
            raise SleuthError("the process that renders chat templates did not start; is transformers installed whole?")
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.shutdown()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def rendered(self, request: str, seconds: float) -> dict[str, str]:
        """What `render_worker.rendered` returns for a request in JSON; a `limit` if it takes longer than `seconds`."""
        if self._process.stdin is None or self._process.poll() is not None:
            return {"limit": "an earlier rendering reached a limit"}
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._answer(seconds)
        if answer is None:
            return {"limit": f"it does not end within {seconds:.0f} s"}
        return json.loads(answer) if answer else {"limit": render_worker.TOO_MUCH_MEMORY}

    def _answer(self, seconds: float) -> str | None:
        """The next line of the process; empty if it has ended, None if it was late and was ended."""
        stream = self._process.stdout
        assert stream is not None
        waiting = self._reader.submit(stream.readline)
        try:
            return waiting.result(seconds)
        except Late:
            self._process.kill()
            waiting.result()
            return None


class BoundedTemplate:
    """The chat template `source` with the tokenizer's special tokens, rendered by `process`.

    Renders as `apply_chat_template(tokenize=False)` of transformers does. Equal renderings are made once.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerFast, process: RenderProcess) -> None:
        self.source = source
        self._variables = {
            name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
        }
        self._known: dict[str, dict[str, str]] = {}
        self._process = process
        self._seconds = ALL_SECONDS

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the messages; with `prompt`, up to where the next answer begins. `flags` are further variables.

        Raises TemplateRefusedError or TemplateLimitError.
        """
        request = json.dumps(
            {
                "source": self.source,
                "messages": list(messages),
                "tools": list(tools) or None,
                "prompt": prompt,
                "variables": self._variables | dict(flags or {}),
            }
        )
        if request not in self._known:
            self._known[request] = self._timed(request)
        found = self._known[request]
        if "limit" in found:
            raise TemplateLimitError(found["limit"])
        if "error" in found:
            raise TemplateRefusedError(found["error"])
        return found["text"]

    def _timed(self, request: str) -> dict[str, str]:
        if self._seconds <= 0:
            return {"limit": f"its renderings together take more than {ALL_SECONDS:.0f} s"}
        began = time.monotonic()
        try:
            return self._process.rendered(request, min(RENDER_SECONDS, self._seconds))
        finally:
            self._seconds -= time.monotonic() - began
