"""Sends what a user's code prints to stderr: stdout may be read by a program, as with `--json`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_OF_USER: ContextVar[bool] = ContextVar("of_user", default=False)


class _Stdout:
    """Standard output; what is written while `prints_to_stderr` is active in the same task or thread goes to stderr."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> Any:
        return (sys.stderr if _OF_USER.get() else self._stream).write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Prints of this task, or of this thread, go to stderr; those of others stay as they are."""
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)
    token = _OF_USER.set(True)
    try:
        yield
    finally:
        _OF_USER.reset(token)
