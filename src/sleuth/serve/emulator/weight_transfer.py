"""Weights that an emulated vLLM takes from shared memory, by the requests of vLLM's backend `ipc`."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sleuth.engines.remote.shared_memory import CPU, read_host_memory
from sleuth.serve.emulator.bodies import field, list_of
from sleuth.types import SleuthError

NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."


class _Plain(pickle.Unpickler):
    """Reads numbers, text and their containers; refuses every class and function."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}: handles of the host's memory are plain values")


def received_weights(info: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the weights that an `update_info` names. Raises SleuthError if it is malformed."""
    names, dtypes = list_of(info, "names", str), list_of(info, "dtype_names", str)
    shapes = list_of(info, "shapes", list)
    try:
        pickled = base64.b64decode(field(info, "ipc_handles_pickled", str, ""), validate=True)
        handles = _Plain(io.BytesIO(pickled)).load()
        found = zip(names, dtypes, shapes, handles, strict=True)
        return {name: _copied(handle[CPU], dtype, shape) for name, dtype, shape, handle in found}
    except KeyError:
        raise SleuthError("IPC handle not found for the memory of this host") from None
    except (ValueError, TypeError, AttributeError, EOFError, OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise SleuthError(f"update_info: cannot be read ({type(error).__name__}: {error})") from None


def _copied(handle: tuple[str, int, int], dtype: str, shape: list[int]) -> Tensor:
    return torch.frombuffer(read_host_memory(*handle), dtype=getattr(torch, dtype)).reshape(shape)
