"""Whether the Python and the commands that recipes name may run in this process: `CODE`, which each import of such a
module and each start of such a command asks. What such Python prints goes to stderr: a program may read stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from sleuth.host.escapes import one_line
from sleuth.host.threads import to_stderr
from sleuth.types import SleuthError

BY_NO_COMMAND = ", and this command runs no code that a recipe, a run or a checkpoint names"
BY_NO_CODE = ", which --no-code refuses"
BY_RUN = ", and this command imports nothing that a run names"
BY_NO_ALLOW_CODE = ", and what a run names is imported only with --allow-code"


class CodeRefusedError(SleuthError):
    """Python or a command that this command line may not run; nothing of it was run."""


@dataclass(slots=True, kw_only=True)
class CodePermission:
    """What may run. Programs that use the package may run all; a command line nothing, unless its options say so.

    `refusal` is why nothing may run, as the end of a sentence; empty: all may. `skips`: a check goes on without what is
    refused. `announced` and `refused` are sentences such as "starts python my_server.py".
    """

    refusal: str = ""
    skips: bool = False
    announced: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def require(self, act: str) -> None:
        """Raises CodeRefusedError if `act` may not be done."""
        if self.refusal:
            self.refused += [act] if act not in self.refused else []
            raise CodeRefusedError(f"{one_line(act)}{self.refusal}")

    def announce(self, act: str) -> None:
        """The same, and prints a line before `act` is done for the first time; of several ranks the first prints it."""
        self.require(act)
        if act not in self.announced:
            self.announced.append(act)
            if os.environ.get("RANK", "0") == "0":
                to_stderr(f"code: {one_line(act)}")

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Ends the block quietly at what is refused, if this is a check that goes on without it."""
        try:
            yield
        except CodeRefusedError:
            if not self.skips:
                raise

    @contextmanager
    def refusing(self, refusal: str) -> Iterator[None]:
        """In this context nothing may run."""
        before, self.refusal = self.refusal, refusal
        try:
            yield
        finally:
            self.refusal = before

    def skipped_line(self) -> str:
        """What a check went on without; empty if that is nothing."""
        acts = "; ".join(map(one_line, self.refused))
        return f"--no-code: not checked, as the recipe {acts}" if acts else ""

    def take(self, other: CodePermission) -> None:
        """Becomes a copy of another one."""
        for name in ("refusal", "skips", "announced", "refused"):
            setattr(self, name, getattr(other, name))

    @contextmanager
    def of_command_line(self) -> Iterator[None]:
        """In this context nothing may run until an option of the command sets `refusal`."""
        before = replace(self)
        self.take(CodePermission(refusal=BY_NO_COMMAND))
        try:
            yield
        finally:
            self.take(before)


CODE = CodePermission()
"""Of this process."""


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
