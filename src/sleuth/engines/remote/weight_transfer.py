"""Weights handed to a server from the learner's memory, without a folder: to one that shares its card as handles of
memory, to a vLLM on other cards by NCCL.

Facts, read in vLLM 0.32.0 (below vllm: entrypoints/rl/online/api_router.py, distributed/weight_transfer,
distributed/device_communicators/pynccl.py), NCCL (src/init.cc) and SGLang 0.5.23 (below python/sglang/srt:
entrypoints/http_server.py, managers/tp_worker.py, managers/scheduler_components/weight_updater.py, utils/common.py):

- A vLLM takes weights by the backend of its `--weight-transfer-config`, "ipc" or "nccl"; without that setting requests
  fail with status 500, and with "nccl" one without an id, naming the field.
- `ipc_handles_pickled` is the base64 of a pickled list with a table for each weight, from the UUID of the card to the
  arguments of torch's `rebuild_cuda_tensor`. vLLM reads it only with `VLLM_ALLOW_INSECURE_SERIALIZATION=1`, since a
  pickle can run code; SGLang unpickles what torch needs for tensors, and a few names that call others. Both must listen
  on loopback. `serialized_named_tensors` has a pickled list of (name, tensor) for each rank of tensor parallelism.
- SGLang reads the tensors outside any `try`: a server that cannot open them ends.
- The trainer is rank 0. All ranks call `ncclCommInitRank` at the same time, then `ncclAllReduce` with one float32;
  `/update_weights` takes one `ncclBroadcast` for each weight, in this order and in its dtype.
- NCCL refuses a group whose ranks have other versions of NCCL. vLLM 0.32.0 has that of torch 2.13.0.
- A rank that waits for a lost one waits for ever, until its communicator is aborted. One that still joins cannot be.

With handles the server copies the weights while it updates; until it has finished, the memory must stay as it is. There
are none on a CPU.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import pickle
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from sleuth.host.threads import in_thread
from sleuth.learn.master_weights import WeightSource

Transfer = Literal["from memory", "by broadcast", "as adapters"]
"""How a server takes weights otherwise than whole from a folder: from its own card, from another one, or the adapters
alone from a folder, over weights that it has once taken whole."""
CARD_ARGUMENT = 6
"""The place of the card among the arguments of `rebuild_cuda_tensor`."""
ID_FIELD = "nccl_unique_id_b64"
ID_BYTES = 128
FLOAT32, SUM = 7, 0
"""NCCL's numbers of a dtype and an operation."""
DTYPES = {torch.float16: 6, torch.float32: FLOAT32, torch.float64: 8, torch.bfloat16: 9}
Handle = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """A model's weights by name, and a handle of each in this order: from the UUID of the card to the arguments of
    `rebuild_cuda_tensor`."""

    weights: dict[str, Tensor]
    handles: list[Handle]

    def update_info(self) -> dict[str, Any]:
        """For vLLM's `/update_weights`."""
        return update_info_of(self.weights) | {"ipc_handles_pickled": _pickled(self.handles)}

    def serialized_named_tensors(self) -> list[str]:
        """For `/update_weights_from_tensor` of an SGLang on one card."""
        tensors = [_CardTensor(*item) for handle in self.handles for item in handle.items()]
        return [_pickled(list(zip(self.weights, tensors, strict=True)))]


def update_info_of(weights: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """What vLLM's `/update_weights` takes about weights, in their order: `names`, `dtype_names`, `shapes`."""
    return {
        "names": list(weights),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
    }


class _CardTensor:
    """Pickled, it is the tensor in the memory of the card that has this UUID."""

    def __init__(self, card: str, arguments: tuple[Any, ...]) -> None:
        self._arguments = (*arguments[:CARD_ARGUMENT], card, *arguments[CARD_ARGUMENT + 1 :])

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_cuda_tensor, self._arguments


def _pickled(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


@contextmanager
def shared_weights(source: WeightSource) -> Iterator[SharedWeights]:
    """Yields the handles of all weights, which one process has whole. They are valid in the context, in which the
    weights must not change. Tied ones have both names, as servers of an untied copy need."""
    [bucket] = source.buckets()
    weights = {name: weight.detach().contiguous() for name, weight in bucket.items()}
    with handles_of(list(weights.values())) as handles:
        yield SharedWeights(weights, handles)


@contextmanager
def handles_of(weights: list[Tensor]) -> Iterator[list[Handle]]:
    """Yields a handle of each weight, all on one card."""
    device = weights[0].device
    torch.cuda.synchronize(device)
    card = str(torch.cuda.get_device_properties(device).uuid)
    yield [{card: reduce_tensor(weight)[1]} for weight in weights]
    torch.cuda.ipc_collect()


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
