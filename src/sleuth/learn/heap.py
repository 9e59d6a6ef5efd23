"""Memory that an update frees stays with the process: the next needs as much, and the system would give it anew page by
page."""

from __future__ import annotations

import ctypes
import os
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
LARGEST_KEPT = 2**25
"""Bytes of a tensor. A larger one goes back to the system at once: glibc, asked for aligned memory, can fail to see
that a freed tensor of the same size would do, several times over."""
MOST_KEPT = 2**30
"""Bytes that lie free, of those freed last."""


@cache
def keep_freed_memory() -> bool:
    """Tell glibc so, for the whole process; whether it was told.

    Who has told it something in the environment (`MALLOC_...`, `GLIBC_TUNABLES`) is not contradicted. Other libraries
    have their own ways.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGEST_KEPT), mallopt(TRIM_THRESHOLD, MOST_KEPT)])
