"""The imports that take seconds: torch, transformers' models, numba. A verb makes them after it has read its input."""

from __future__ import annotations

import gc
import sys


def import_heavy() -> None:
    """Import all of it, with the garbage collector at rest.

    400,000 objects come into being, and no garbage: to look through them again and again takes a second or two of a
    start, and to leave them out for good saves 0.1 s at each full collection.
    """
    if "sleuth.factories" in sys.modules:  # somebody else's process, such as that of a test
        return
    gc.disable()
    try:
        import sleuth.factories  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
