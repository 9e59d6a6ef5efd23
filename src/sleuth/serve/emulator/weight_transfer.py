"""Weights that an emulated server takes from shared memory, by the requests of vLLM and SGLang."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sleuth.engines.remote.broadcast import GlooGroup, GroupError
from sleuth.engines.remote.shared_memory import CPU, read_host_memory
from sleuth.serve.emulator.bodies import field, list_of
from sleuth.types import SleuthError

NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
UNREADABLE = (ValueError, TypeError, AttributeError, EOFError, OSError, RuntimeError, IndexError, OverflowError)
UNREADABLE += (pickle.UnpicklingError, GroupError)
"""What a malformed pickle, handle or group raises."""
ID_FIELD = "gloo_unique_id_b64"
INIT_INFO = {ID_FIELD, "rank_offset", "world_size", "packed"}
MAX_RANKS = 64


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


class ReceivedBroadcast:
    """Weights by broadcast, as from vLLM's backend `nccl`, but by gloo. Raises SleuthError for malformed requests."""

    def __init__(self) -> None:
        self._group: GlooGroup | None = None

    async def join(self, info: Mapping[str, Any]) -> None:
        """Joins the trainer's group."""
        if set(info) != INIT_INFO:
            raise SleuthError(f"Invalid init_info: need {ID_FIELD}, and of others only {', '.join(sorted(INIT_INFO))}")
        unique_id, rank = field(info, ID_FIELD, str, ""), field(info, "rank_offset", int, 1)
        size = field(info, "world_size", int, 2)
        if not 0 < rank < size <= MAX_RANKS or info["packed"] is not False:
            raise SleuthError(f"init_info: rank {rank} of {size}, packed = {info['packed']}")

        def join() -> GlooGroup:
            group = GlooGroup(base64.b64decode(unique_id, validate=True))
            group.join(size, rank)
            return group

        with _reading("init_info"):
            self._group = await asyncio.to_thread(join)

    async def receive(self, info: Mapping[str, Any]) -> dict[str, Tensor]:
        """The weights that an `update_info` announces."""
        names, dtypes = list_of(info, "names", str), list_of(info, "dtype_names", str)
        group, shapes = self._group, list_of(info, "shapes", list)
        if group is None:
            raise SleuthError("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        with _reading("update_info"):
            announced = zip(names, dtypes, shapes, strict=True)
            state = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in announced}
            await asyncio.to_thread(group.broadcast, list(state.values()))
            return state


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
