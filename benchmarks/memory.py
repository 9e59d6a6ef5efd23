"""Resident memory of a process, from /proc (Linux)."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

CLEAR = Path("/proc/self/clear_refs")


def resident_bytes(process: int | str = "self") -> int:
    """The resident bytes now."""
    return field_bytes("VmRSS", process)


def peak_bytes() -> int:
    """The peak resident bytes of this process, since the start or since `forget_peak`."""
    return field_bytes("VmHWM", "self")


def forget_peak() -> None:
    """Resets the peak to the resident memory of now."""
    CLEAR.write_text("5")


def give_back_freed() -> None:
    """Returns freed memory to the system, so that its next user is charged for it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def field_bytes(name: str, process: int | str = "self") -> int:
    """The bytes of a field of its status: `RssAnon` are those that no file is mapped to."""
    status = Path(f"/proc/{process}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024
