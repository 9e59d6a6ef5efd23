"""Compilation of loops by numba, for fp32 on a CPU, where libraries have no call or need many small ones.

A card needs none of them. Without numba, as in an image with torch and transformers alone, torch computes on a CPU too.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sleuth.host.threads import PROCESS

os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")  # colorama would write to stdout at exit
numba: Any
try:
    import numba
except ImportError:
    numba = None

prange: Any = range if numba is None else numba.prange
"""Numba's parallel range."""

LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
MIN_EXPONENT = np.float32(-126)  # smallest power of two that fp32 stores at full precision
POWER_COEFFICIENTS = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    )
)
FAST_MATH = {"contract", "reassoc", "arcp", "nsz"}
"""LLVM flags that let sums be vectorised. Infinity and NaN keep their meaning."""

_has_loops = numba is not None
_PARALLEL_LOOP = threading.Lock()  # not every threading layer of numba supports two callers


def compiled(function: Callable[..., Any], *, parallel: bool = False, exact: bool = False) -> Callable[..., Any]:
    """The function compiled at its first call, or loaded from numba's cache; inlined where other loops call it. The
    function itself where numba is missing. `exact`: each operation is rounded, in the order that is written.

    Otherwise a loop calls the copy of its callee that the process has: the one compiled by itself, or in a process that
    loads the loop from the cache the one compiled with it, which may add in another order.
    """
    if numba is None:
        return function
    options: dict[str, Any] = {"nogil": True, "fastmath": set() if exact else FAST_MATH, "error_model": "numpy"}
    options |= {"parallel": True} if parallel else {"forceinline": True}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # no cache folder is writable: compile once per process
        return numba.njit(function, **options)


def compiled_in_parallel(function: Callable[..., Any]) -> Callable[..., None]:
    """`compiled`, with loops over `prange` in as many threads as torch uses, less those whose cores others use,
    or in one if called with `shared=False`. Results must not depend on the number of threads."""
    loop = compiled(function, parallel=True)

    @functools.wraps(function)
    def run(*arguments: Any, shared: bool = True) -> None:
        with _PARALLEL_LOOP:
            available = _available_threads()
            numba.set_num_threads(max(1, min(torch.get_num_threads() - PROCESS.watch.lent, available)) if shared else 1)
            loop(*arguments)

    return run


@functools.cache
def _available_threads() -> int:
    """Numba's number of threads. The call starts them, which changes OpenMP's number of threads and so torch's; this
    restores it."""
    before = torch.get_num_threads()
    available = numba.get_num_threads()
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
    return available


def is_compiled_for(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are compiled loops, and they can read tensors of this device and dtype."""
    return _has_loops and device.type == "cpu" and dtype == torch.float32


@contextmanager
def without_loops() -> Iterator[None]:
    """In this context torch computes what the loops would. To compile them on a machine that has never run them takes
    a quarter of a minute, which a process that answers a few questions does not earn back."""
    global _has_loops
    before, _has_loops = _has_loops, False
    try:
        yield
    finally:
        _has_loops = before


def can_be_read(*tensors: Tensor) -> bool:
    """Whether compiled loops can read these tensors: fp32 on a CPU and no subclass, such as a shard (DTensor)."""
    for tensor in tensors:  # no generator: it is asked several times a layer
        if type(tensor) not in (Tensor, nn.Parameter) or not is_compiled_for(tensor.device, tensor.dtype):
            return False
    return True


@compiled
def power_of_two(exponent):
    """2^x for x <= 0, to a relative error of 1e-7, vectorisable unlike the library's: the integer part by the bits of a
    float, the rest (-0.5 to 0.5) by the polynomial of Cephes."""
    exponent = max(exponent, MIN_EXPONENT)
    whole = np.floor(exponent + np.float32(0.5))
    rest = exponent - whole
    power = np.float32(1.535336188319500e-4)
    for coefficient in POWER_COEFFICIENTS:
        power = power * rest + coefficient
    return power * np.int32((np.int32(whole) + 127) << 23).view(np.float32)


@compiled
def greatest(numbers):
    """The maximum of at least one number. May ignore a NaN."""
    largest = numbers[0]
    for at in range(len(numbers)):
        largest = max(largest, numbers[at])
    return largest
