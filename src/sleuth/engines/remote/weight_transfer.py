"""Weights sent to a vLLM on other cards by NCCL, without a folder.

Facts, read in vLLM 0.32.0 (below vllm: entrypoints/rl/online/api_router.py, distributed/weight_transfer,
distributed/device_communicators/pynccl.py) and NCCL (src/init.cc):

- A vLLM takes weights by the backend "nccl" of its `--weight-transfer-config`; without that setting requests fail with
  status 500, and with it one without an id, naming the field.
- The trainer is rank 0. All ranks call `ncclCommInitRank` at the same time, then `ncclAllReduce` with one float32;
  `/update_weights` takes one `ncclBroadcast` for each weight, in this order and in its dtype.
- NCCL refuses a group whose ranks have other versions of NCCL. vLLM 0.32.0 has that of torch 2.13.0.
- A rank that waits for a lost one waits for ever, until its communicator is aborted. One that still joins cannot be.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from sleuth.host.threads import in_thread
from sleuth.learn.master_weights import WeightSource

Transfer = Literal["by broadcast", "as adapters"]
"""How a server takes weights otherwise than whole from a folder: from another card, or the adapters alone from a
folder, over weights that it has once taken whole."""
ID_FIELD = "nccl_unique_id_b64"
ID_BYTES = 128
FLOAT32, SUM = 7, 0
"""NCCL's numbers of a dtype and an operation."""
DTYPES = {torch.float16: 6, torch.float32: FLOAT32, torch.float64: 8, torch.bfloat16: 9}


def update_info_of(weights: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """What vLLM's `/update_weights` takes about weights, in their order: `names`, `dtype_names`, `shapes`."""
    return {
        "names": list(weights),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
    }


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


class BroadcastWeights:
    """A learner's weights, and a group of their own that sends them to one server. Raises GroupError."""

    def __init__(self, source: WeightSource) -> None:
        self.outline = source.outline()
        self.group = NcclGroup(source.model.device)
        self._source = source

    def init_info(self, workers: int) -> dict[str, Any]:
        """For `/init_weight_transfer_engine` of a server with so many workers."""
        unique_id = base64.b64encode(self.group.unique_id).decode()
        return {ID_FIELD: unique_id, "rank_offset": 1, "world_size": 1 + workers, "packed": False}

    async def join(self, workers: int, request: Coroutine[Any, Any, Any]) -> None:
        """Joins the group while a server does, by a request. Raises GroupError, and what the request raises."""
        await self._beside(request, lambda: self.group.join(1 + workers))

    async def send(self, request: Coroutine[Any, Any, Any]) -> None:
        """Sends the weights while a server takes them, by a request. Raises as `join`."""
        await self._beside(request, self._broadcast)

    def _broadcast(self) -> None:
        with self._source.one_pass:
            for bucket in self._source.buckets():
                self.group.broadcast([weight.detach().contiguous() for weight in bucket.values()])

    async def _beside(self, request: Coroutine[Any, Any, Any], work: Callable[[], None]) -> None:
        """Runs both. If the request fails, work is aborted; if work fails, the request is cancelled."""
        working, asking = in_thread(work), asyncio.ensure_future(request)
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
