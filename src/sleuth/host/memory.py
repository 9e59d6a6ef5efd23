"""Amounts of memory, as people write them, and what is free on the host and was taken at most."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

from sleuth.types import SleuthError

DEFAULT_SLOTS = 256
"""Requests that an engine in this process runs at once at most; the memory of its cache may admit fewer."""

FREE_SHARE = {"cpu": 0.5, "cuda": 0.8}
"""The share of a device's free memory that the cache takes at most by default; the rest is for activations."""

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """The number of bytes in "500MB", "2GB", "1.5 GB" or "4000000"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B|[MG]IB|)", text.strip().upper())
    if match is None or not float(match[1]):
        raise SleuthError(f"size {text!r}: write a number with KB, MB or GB after it, such as 500MB or 2GB")
    return max(1, int(float(match[1]) * UNITS[match[2]]))


def parse_share(text: str, total: int) -> int:
    """The number of bytes in "8GB", or in a share of `total` bytes such as "40%"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None:
        try:
            return parse_size(text)
        except SleuthError:
            raise SleuthError(f"{text!r}: write an amount such as 8GB or 500MB, or a share such as 40%") from None
    if not 0 < float(match[1]) <= 100:
        raise SleuthError(f"{text!r}: a share is more than 0% and at most 100%")
    return int(float(match[1]) / 100 * total)


def require_amount(text: str) -> str:
    """The text. Raises SleuthError if it is neither an amount of memory nor a share of it."""
    parse_share(text, 1)
    return text


def total_host_memory(system: Path = Path("/")) -> int:
    """The bytes of memory that this process may take at most: the host's, or its container's limit."""
    return _limit(system / "sys/fs/cgroup")


def free_host_memory(system: Path = Path("/")) -> int:
    """The bytes of memory that this process could still take: free on the host, and within its container's limit."""
    free = _number(r"^MemAvailable:\s+(\d+) kB", text_of(system / "proc/meminfo")) * 1024 or _physical()
    groups = system / "sys/fs/cgroup"
    used = _number(r"^(\d+)$", text_of(groups / "memory.current") or text_of(groups / "memory/memory.usage_in_bytes"))
    statistics = text_of(groups / "memory.stat") or text_of(groups / "memory/memory.stat")
    reclaimable = _number(r"^(?:total_)?inactive_file (\d+)$", statistics)  # files' pages that the kernel gives up
    return max(0, min(free, _limit(groups) - used + reclaimable))


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit(groups: Path) -> int:
    """The limit of the control group of this process, by the file of its version 2 or 1; all there is if it has
    none."""
    limits = [text_of(groups / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([_physical(), *(int(limit) for limit in limits if limit.isdigit())])


def _number(pattern: str, text: str) -> int:
    """The number that the pattern finds in a text; 0 if it is not there."""
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else 0


def text_of(file: Path) -> str:
    """What is in a file; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def peak_memory() -> tuple[int, int]:
    """Peak bytes of host memory and of GPU memory since the process began."""
    import torch  # slow to import, and reading a run folder does not need it

    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return host, torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
