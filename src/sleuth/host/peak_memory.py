"""The peak memory of this process."""

from __future__ import annotations

import resource
import sys

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in a unit of `ru_maxrss`."""


def peak_memory() -> tuple[int, int]:
    """Peak bytes of host memory and of GPU memory since the process began."""
    import torch  # slow to import, and reading a run folder does not need it

    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    return host, torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
