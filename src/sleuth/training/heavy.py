"""The imports that take seconds: torch, transformers, numba. A verb makes them after it has checked its input."""

from __future__ import annotations

import atexit
import gc
import sys


def import_heavy() -> None:
    """Imports all of it with the garbage collector off.

    The imports create 400,000 objects and no garbage. Scanning them repeatedly would add one or two seconds, and
    freezing them saves 0.1 s at each full collection.
    """
    if "sleuth.training.stage_context" in sys.modules:  # a process that is not ours alone, such as that of a test
        return
    gc.disable()
    try:
        import sleuth.training.stage_context  # noqa: F401
    finally:
        freeze_loaded()
        gc.enable()


def freeze_loaded() -> None:
    """Excludes all objects that there are from garbage collection, until the process ends."""
    gc.freeze()
    atexit.register(_unfreeze)


def _unfreeze() -> None:
    """Includes them in the interpreter's last collection if Triton is imported: its bindings print 30 lines about what
    is left of them. Freeing all of torch takes a second."""
    if "triton" in sys.modules:
        gc.unfreeze()
