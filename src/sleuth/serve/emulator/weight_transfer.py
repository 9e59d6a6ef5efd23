"""Weights that an emulated server takes from shared memory, by the requests of vLLM and SGLang."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sleuth.engines.remote.shared_memory import CPU, read_host_memory
from sleuth.serve.emulator.bodies import field, list_of
from sleuth.types import SleuthError

NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
UNREADABLE = (ValueError, TypeError, AttributeError, EOFError, OSError, RuntimeError, IndexError, OverflowError)
UNREADABLE += (pickle.UnpicklingError,)
"""What a malformed pickle or handle raises."""


class _Plain(pickle.Unpickler):
    """Reads numbers, text and their containers; refuses every class and function."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}: handles of the host's memory are plain values")


def received_weights(info: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the weights that vLLM's `update_info` names. Raises SleuthError if it is malformed."""
    names, dtypes = list_of(info, "names", str), list_of(info, "dtype_names", str)
    shapes, pickled = list_of(info, "shapes", list), field(info, "ipc_handles_pickled", str, "")
    with _reading("update_info"):
        found = zip(names, dtypes, shapes, _plain(pickled), strict=True)
        return {name: _copied(handle[CPU], dtype, shape) for name, dtype, shape, handle in found}


def named_tensors(payloads: Sequence[str]) -> dict[str, Tensor]:
    """Copies of the weights in SGLang's `serialized_named_tensors`. Raises SleuthError if they are malformed."""
    with _reading("serialized_named_tensors"):
        [pickled] = payloads
        return {name: _copied(handle, dtype, shape) for name, handle, dtype, shape in _plain(pickled)}


@contextmanager
def _reading(field_name: str) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise SleuthError(f"{field_name}: IPC handle not found for the memory of this host") from None
    except UNREADABLE as error:
        raise SleuthError(f"{field_name}: cannot be read ({type(error).__name__}: {error})") from None


def _plain(pickled: str) -> Any:
    return _Plain(io.BytesIO(base64.b64decode(pickled, validate=True))).load()


def _copied(handle: tuple[str, int, int], dtype: str, shape: list[int]) -> Tensor:
    return torch.frombuffer(read_host_memory(*handle), dtype=getattr(torch, dtype)).reshape(shape)
