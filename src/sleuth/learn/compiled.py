"""Loops compiled by numba, for what no library has a call for, or only many small ones: of fp32 on a CPU."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
MIN_EXPONENT = np.float32(-126)  # of the powers of two that fp32 holds at full precision
FACTORS = tuple(
    np.float32(factor)
    for factor in (
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    )
)
ROUNDING = {"contract", "reassoc", "arcp", "nsz"}
"""What the compiler may do to a sum, so that it is done in vectors. Infinities and NaN stay what they are."""

_ONE_AT_A_TIME = threading.Lock()  # not every threading layer of numba bears two callers


def compiled(function: Callable[..., Any], *, parallel: bool = False) -> Callable[..., Any]:
    """At the first call, or found beside its file, where it was left the last time."""
    how: dict[str, Any] = {"nogil": True, "fastmath": ROUNDING, "error_model": "numpy", "parallel": parallel}
    try:
        return numba.njit(function, cache=True, **how)
    except RuntimeError:  # neither that folder nor the user's can be written to: it is compiled once a process
        return numba.njit(function, **how)


def compiled_in_parallel(function: Callable[..., Any]) -> Callable[..., None]:
    """`compiled`; its loops over `numba.prange` are shared by as many threads as torch has, unless a call says that it
    is not worth sharing."""
    loop = compiled(function, parallel=True)

    @functools.wraps(function)
    def run(*arguments: Any, shared: bool = True) -> None:
        with _ONE_AT_A_TIME:
            most = _most_threads()
            numba.set_num_threads(min(torch.get_num_threads(), most) if shared else 1)
            loop(*arguments)

    return run


@functools.cache
def _most_threads() -> int:
    """All that numba has. Its threads begin here, and with them OpenMP gets another number of threads, which is torch's
    number too: that is put back."""
    before = torch.get_num_threads()
    most = numba.get_num_threads()
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
    return most


def is_compiled_for(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the loops can read tensors of this kind."""
    return device.type == "cpu" and dtype == torch.float32


def can_be_read(*tensors: Tensor) -> bool:
    """Whether these are of that kind, with memory of their own, which shards and the like have not."""
    return all(
        type(tensor) in (Tensor, nn.Parameter) and is_compiled_for(tensor.device, tensor.dtype) for tensor in tensors
    )


@compiled
def power_of_two(exponent):
    """2^x for x <= 0, to 1e-7 of it: of the whole part by the bits of a float, of the rest (-0.5 to 0.5) by the
    polynomial of Cephes. Unlike the library's it can be done in vectors."""
    exponent = max(exponent, MIN_EXPONENT)
    whole = np.floor(exponent + np.float32(0.5))
    rest = exponent - whole
    power = np.float32(1.535336188319500e-4)
    for factor in FACTORS:
        power = power * rest + factor
    return power * np.int32((np.int32(whole) + 127) << 23).view(np.float32)


@compiled
def greatest(numbers):
    """Of at least one. A NaN may be passed over."""
    most = numbers[0]
    for at in range(len(numbers)):
        most = max(most, numbers[at])
    return most
