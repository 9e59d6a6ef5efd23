"""Whether memory that an update frees stays with the process, as the next will need as much and the system would give
it anew page by page, or goes back."""

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
LEAST_RETURNED = 2**19
"""Bytes of a tensor that is given back at once. Smaller ones are kept: what page by page takes longer than to make."""


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to keep it, for the whole process, unless `return_freed_memory` was called; whether it was told.

    Who has told it something in the environment (`MALLOC_...`, `GLIBC_TUNABLES`) is not contradicted. Other libraries
    have their own ways.
    """
    return _tell(mapped=LARGEST_KEPT, kept=MOST_KEPT)


@cache
def return_freed_memory() -> bool:
    """Tell glibc to give it back, for the whole process and for good; otherwise as `keep_freed_memory`.

    What is kept lies in pieces, of which a part fits nothing any more: a fifth to two fifths of all memory, where that
    was measured.
    """
    keep_freed_memory()  # whoever asks for it from now on finds it done
    return _tell(mapped=LEAST_RETURNED, kept=LEAST_RETURNED)


def _tell(*, mapped: int, kept: int) -> bool:
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return all([mallopt(MMAP_THRESHOLD, mapped), mallopt(TRIM_THRESHOLD, kept)])
