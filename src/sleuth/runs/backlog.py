"""Writes that wait while the disk is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sleuth.host.disk import is_full, lack
from sleuth.types import SleuthError

MAX_WAITING = 64
"""Writes that may wait. With more, the run would go on without saving anything."""


class Backlog:
    """Performs writes in order. A write that finds no room waits, and is retried before the next one.

    `say` gets a line when the disk becomes full and when there is room again. Each write must be atomic.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._reported_full = False

    def write(self, what: str, action: Callable[[], object]) -> None:
        """Calls `action`, or keeps it until there is room. `what` names it: "metrics of step 12".

        Raises SleuthError if more than MAX_WAITING writes wait: the run can resume from its last checkpoint.
        """
        self._waiting.append((what, action))
        if not self.flush() and len(self._waiting) > MAX_WAITING:
            raise SleuthError(
                f"the disk has been full for long: {len(self._waiting)} writes wait, the first of them "
                f"{self._waiting[0][0]}; make room and run the same command again: it continues from the last save"
            )

    def flush(self) -> bool:
        """Retries the waiting writes; returns whether all succeeded."""
        while self._waiting:
            what, action = self._waiting[0]
            try:
                action()
            except OSError as error:
                if not is_full(error):
                    raise
                self._report_full(f"{lack(error)} for {what}: it waits, and the run goes on")
                return False
            self._waiting.popleft()
        if self._reported_full:
            self._reported_full = False
            self.say("there is room on the disk again: all waiting files are written")
        return True

    def _report_full(self, line: str) -> None:
        if not self._reported_full:
            self._reported_full = True
            self.say(line)
