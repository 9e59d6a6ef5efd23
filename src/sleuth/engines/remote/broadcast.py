"""Weights broadcast to a vLLM on other cards, without a folder.

Facts, read in vLLM 0.32.0 (below vllm: distributed/weight_transfer/nccl_engine.py and nccl_common.py,
distributed/device_communicators/pynccl.py, entrypoints/rl/online/api_router.py) and in NCCL (src/init.cc):

- A server started with `--weight-transfer-config '{"backend": "nccl"}'` takes `POST /init_weight_transfer_engine` with
  `init_info`: `nccl_unique_id_b64`, the base64 of the 128 bytes of `ncclGetUniqueId`; `world_size`, the trainer and all
  workers (`GET /get_world_size`); `rank_offset` 1; `packed` false. Without an id it refuses, naming the field.
- The trainer is rank 0. All ranks call `ncclCommInitRank` at the same time, then `ncclAllReduce` with one float32.
- Between `/start_weight_update` and `/finish_weight_update`, `/update_weights` with `names`, `dtype_names` and `shapes`
  takes one `ncclBroadcast` from rank 0 for each weight, in this order and in its dtype, and answers after the last one.
- `/shutdown_weight_transfer_engine` ends the group.
- NCCL refuses a group whose ranks have other versions of NCCL. vLLM 0.32.0 has that of torch 2.13.0.
- A rank that waits for a lost one waits for ever, until its communicator is aborted. One that still joins cannot be.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

ID_FIELD = "nccl_unique_id_b64"
ID_BYTES = 128
FLOAT32, SUM = 7, 0
"""NCCL's numbers of a dtype and an operation."""
DTYPES = {torch.float16: 6, torch.float32: FLOAT32, torch.float64: 8, torch.bfloat16: 9}


class GroupError(Exception):
    """A collective failed; the message says which."""


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


class NcclGroup:
    """The trainer, on a card, and the workers of a server, by the NCCL that torch has loaded; others join by the bytes
    `unique_id`. Methods block, and raise GroupError."""

    def __init__(self, device: torch.device, unique_id: bytes | None = None) -> None:
        self._device = device
        self._communicator = ctypes.c_void_p()
        self._id = _UniqueId() if unique_id is None else _UniqueId.from_buffer_copy(unique_id)
        try:
            self._library = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            raise GroupError(f"this torch has no NCCL to call ({error})") from None
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        if unique_id is None:
            self._call("ncclGetUniqueId", ctypes.byref(self._id))
        self.unique_id = bytes(self._id)

    def join(self, size: int, rank: int = 0) -> None:
        """Waits until all have joined. The trainer has rank 0."""
        with torch.cuda.device(self._device):
            self._call("ncclCommInitRank", ctypes.byref(self._communicator), size, self._id, rank)
            one = torch.zeros(1, device=self._device)
            self._collective("ncclAllReduce", one, SUM)
            torch.cuda.current_stream().synchronize()

    def broadcast(self, weights: Sequence[Tensor]) -> None:
        """Sends the weights to all others, in order; those of others are overwritten."""
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            for weight in weights:
                self._collective("ncclBroadcast", weight, 0)
            torch.cuda.current_stream().synchronize()

    def abort(self) -> None:
        """Ends the group, and what waits in it."""
        communicator, self._communicator = self._communicator, ctypes.c_void_p()
        if communicator:
            self._library.ncclCommAbort(communicator)

    def _collective(self, name: str, tensor: Tensor, how: int) -> None:
        """In place. `how` is the operation, or the root."""
        if tensor.dtype not in DTYPES:
            raise GroupError(f"{name}: no weights of {tensor.dtype}")
        memory, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call(name, memory, memory, count, DTYPES[tensor.dtype], how, self._communicator, stream)

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise GroupError(f"{name}: {self._library.ncclGetErrorString(code).decode()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastWeights:
    """A model's weights by name, and the group that sends them to one server."""

    weights: dict[str, Tensor]
    group: NcclGroup

    def init_info(self, workers: int) -> dict[str, Any]:
        """For `/init_weight_transfer_engine` of a server with so many workers."""
        unique_id = base64.b64encode(self.group.unique_id).decode()
        return {ID_FIELD: unique_id, "rank_offset": 1, "world_size": 1 + workers, "packed": False}

    async def join(self, workers: int, request: Coroutine[Any, Any, Any]) -> None:
        """Joins the group while a server does, by a request. Raises GroupError, and what the request raises."""
        await self._beside(request, lambda: self.group.join(1 + workers))

    async def send(self, request: Coroutine[Any, Any, Any]) -> None:
        """Sends the weights while a server takes them, by a request. Raises as `join`."""
        await self._beside(request, lambda: self.group.broadcast(list(self.weights.values())))

    async def _beside(self, request: Coroutine[Any, Any, Any], work: Callable[[], None]) -> None:
        """Runs both. If the request fails, work is aborted; if work fails, the request is cancelled."""
        working, asking = _in_thread(work), asyncio.ensure_future(request)
        try:
            await asyncio.wait((working, asking), return_when=asyncio.FIRST_EXCEPTION)
            for part in (asking, working):
                if part.done():
                    await part
            await asyncio.gather(asking, working)
        except BaseException:
            asking.cancel()
            working.cancel()
            self.group.abort()
            raise


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """The result of `work`, in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not result.done():
            result.set_result(None) if error is None else result.set_exception(error)

    def run() -> None:
        error = None
        try:
            work()
        except Exception as caught:  # any: it is raised where the result is awaited
            error = caught
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, error)

    Thread(target=run, daemon=True).start()
    return result


def broadcast_weights(model: PreTrainedModel) -> BroadcastWeights:
    """The weights of a model, with a group of their own; tied weights have both names. Raises GroupError."""
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    return BroadcastWeights(weights=weights, group=NcclGroup(model.device))
