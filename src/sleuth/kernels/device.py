"""What the host asks of a device: whether freed memory stays in the process for the next update or returns to the
system (settings of glibc's malloc, and what torch keeps of a GPU's), whether our kernels work there, and transfers that
the host does not wait for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def free_memory(device: Any) -> int:
    """Bytes of a card that tensors can still take: free ones, and those that torch keeps of freed tensors."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def release_cached_memory() -> None:
    """Returns memory that torch keeps of freed tensors to the GPU; does nothing without one.

    Called where one phase of a run ends and the next begins: blocks in the sizes of one are of little use to the other,
    and an engine sizes its cache by what is free.
    """
    torch.cuda.empty_cache()


@contextmanager
def releasing_cached_memory() -> Iterator[None]:
    """For an update between rollouts: `release_cached_memory` before and after it, also if it fails."""
    release_cached_memory()
    try:
        yield
    finally:
        release_cached_memory()


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on a CPU or a GPU; torch raises a different error for each."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def kernel_problem(device: Any, error: Callable[[], float], tolerance: float) -> str | None:
    """Why kernels of ours for a card cannot be used on a device; None if they work. `error` computes by them, and how
    far that is off plain torch."""
    if device.type != "cuda":
        return "it needs a card"
    try:
        off = error()
    except Exception as problem:  # any: a compiler and a driver have errors of their own
        return line_of(problem)
    return None if off < tolerance else f"its output is off by {off:.3g}"


def line_of(error: Exception) -> str:
    """The first line of an error of a compiler or a driver, which may have many; its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def sent(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The array on `device`; for a card it is on its way, through pinned memory, which torch keeps until it is read."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def send(array: np.ndarray, target: Tensor) -> None:
    """Overwrites `target` by the array, as `sent` sends it."""
    tensor = torch.from_numpy(array)
    target.copy_(tensor.pin_memory() if target.device.type == "cuda" else tensor, non_blocking=True)


class Arrival:
    """Numbers of a card on their way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._numbers = tensor
        if tensor.device.type == "cuda":
            self._numbers = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._numbers.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> np.ndarray:
        """The numbers; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.numpy()
