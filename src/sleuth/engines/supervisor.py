"""Runs a server, starts it again when it dies or listens no longer, and ends it with the process that asked for it,
however that one ends.

`python -I supervisor.py PID PORT COMMAND...` is started by the process PID, which keeps the other end of its standard
input. End of file there, or another parent, means: end the server. A file of the standard library alone, as it waits
beside the trainer for the whole run.

PR_SET_PDEATHSIG alone would not do: it is sent when the *thread* that started a process ends, and not to the processes
that a server starts itself. Therefore this process adopts all descendants that lose their parent
(PR_SET_CHILD_SUBREAPER), and kills whatever is left of them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.2
END_SECONDS = 3.0
"""How long a server may take to end by itself, after SIGTERM."""
KILL_SECONDS = 5.0
REFUSED_SECONDS = 5.0
"""How long a server that has listened may refuse connections. When its engine process dies, vLLM stops listening, and
its own process may stay."""
MAX_FAILED_STARTS = 8
"""Starts in a row that end before the server listens: then it is not started again."""
LONGEST_PAUSE = 30.0
"""Seconds before another start; 1 after the first failed one, doubled each time."""


def main(arguments: Sequence[str]) -> int:
    """0 if the server was ended on request; 1 if it ended before it listened at all, or keeps ending."""
    parent, port, *command = arguments
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which saves first
    wanted = Wanted(int(parent))
    listened_once, failed_starts = False, 0
    while not wanted.ended():
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_supervisor
        )
        listened, heard = False, time.monotonic()
        while server.poll() is None and not wanted.ended(POLL_SECONDS):
            if not _refuses(int(port)):
                listened, heard = True, time.monotonic()
            elif listened and time.monotonic() - heard > REFUSED_SECONDS:
                break
        ended = server.poll()
        _end(server)
        if wanted.ended():
            return 0
        listened_once = listened_once or listened
        failed_starts = 0 if listened else failed_starts + 1
        if not listened_once or failed_starts > MAX_FAILED_STARTS:
            return 1
        what = f"has refused connections for {REFUSED_SECONDS:g} s" if ended is None else f"ended (status {ended})"
        _say(f"the server {what} and is started again")
        if failed_starts:
            wanted.ended(min(LONGEST_PAUSE, 2.0 ** (failed_starts - 1)))
    return 0


class Wanted:
    """Whether the process that asked for the server is still there, and still wants it; SIGTERM ends it too."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._terminated = False
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def ended(self, seconds: float = 0.0) -> bool:
        """Waits up to `seconds` for the end, and returns whether it has come."""
        if self._terminated or os.getppid() != self._parent:
            return True
        readable, _, _ = select.select([0], [], [], seconds)
        return bool(readable) and not os.read(0, 1)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends a server and every process that it has started."""
    if server.poll() is None:
        _signal_group(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)
    _signal_group(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := _children()) and time.monotonic() < deadline:  # the orphans of one are children a moment later
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _children() -> list[int]:
    """The processes whose parent this one is, adopted ones included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _refuses(port: int) -> bool:
    """Whether nobody listens. A server that is too busy to accept a connection in time does listen."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=POLL_SECONDS).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # not Linux: the pipe and the group have to do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_supervisor() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _say(line: str) -> None:
    print(f"supervisor: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
