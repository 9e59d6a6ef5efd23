"""One writer for a run folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sleuth.types import PassingError


class RunLock:
    """Held from construction to `release`. The kernel frees it when its process dies, so that it is never stale."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's whole life
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip() or "just started"
            self._file.close()
            raise PassingError(
                f"{folder}: a process ({owner}) is writing this run; let it end, or choose another folder with --run"
            ) from None
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let another process write the run."""
        self._file.close()
