"""Resident memory of this process, from /proc (Linux)."""

from __future__ import annotations

from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """What is resident now."""
    return _field("VmRSS")


def peak_bytes() -> int:
    """The most that was resident at once, since the start or since `forget_peak`."""
    return _field("VmHWM")


def forget_peak() -> None:
    """Begin the peak again at what is resident now."""
    CLEAR.write_text("5")


def _field(name: str) -> int:
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024
