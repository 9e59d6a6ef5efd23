"""Settings of glibc's malloc: whether freed memory stays in the process for the next update, which saves page faults,
or returns to the system."""

from __future__ import annotations

import ctypes
import os
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
KEPT_TENSOR_BYTES = 2**25
"""Largest tensor that is kept. glibc may repeatedly fail to reuse a larger freed block for an aligned allocation of the
same size."""
KEPT_BYTES = 2**30
"""Free bytes at the top of the heap that are kept."""
RETURNED_TENSOR_BYTES = 2**19
"""Smallest tensor that is returned at once. For smaller ones, page faults cost more than computing them."""


@cache
def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory, process-wide, unless `return_freed_memory` was called. Returns whether it was set.

    Does nothing without glibc, or if `MALLOC_*` or `GLIBC_TUNABLES` is set in the environment.
    """
    return _set_malloc(mapped=KEPT_TENSOR_BYTES, kept=KEPT_BYTES)


@cache
def return_freed_memory() -> bool:
    """Lets glibc return freed memory, process-wide and for good; otherwise as `keep_freed_memory`.

    Kept memory becomes fragmented: a fifth to two fifths of all memory was lost to that where measured.
    """
    keep_freed_memory()  # fills its cache, so that later calls change nothing
    return _set_malloc(mapped=RETURNED_TENSOR_BYTES, kept=RETURNED_TENSOR_BYTES)


def _set_malloc(*, mapped: int, kept: int) -> bool:
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return all([mallopt(MMAP_THRESHOLD, mapped), mallopt(TRIM_THRESHOLD, kept)])
