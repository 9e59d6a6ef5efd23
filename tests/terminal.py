"""Commands in a terminal of 80 columns, as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

COLUMNS = 80
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Screen:
    """What a command wrote, without colours, and its status. `raw` is all that the terminal was sent."""

    text: str
    status: int
    raw: str


class Terminal:
    """A running command, which `end` reads until it has ended."""

    def __init__(self, *command: object, folder: Path, variables: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        words = [str(word) for word in command]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(words, cwd=folder, env=dict(variables), start_new_session=True, **streams)
        os.close(theirs)
        self._raw = b""
        self._read = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def end(self, seconds: float = 240) -> Screen:
        until = time.monotonic() + seconds
        while self._more(until):
            pass
        return Screen(
            text=self._read,
            status=self.process.wait(max(1.0, until - time.monotonic())),
            raw=self._raw.decode(errors="replace"),
        )

    def _more(self, until: float) -> bool:
        """Reads what has come; False at the end."""
        if not select.select([self._ours], [], [], max(0.0, until - time.monotonic()))[0]:
            raise AssertionError(f"still running after its time; it wrote:\n{self._read}")
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # the last process that had the terminal open is gone
            return False
        self._raw += found
        self._read = ESCAPE.sub("", self._read + found.decode(errors="replace"))
        return bool(found)
