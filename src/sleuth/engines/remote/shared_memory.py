"""Weights handed to a vLLM or SGLang on the same machine as handles of memory, without a folder.

Facts, read in vLLM 0.32.0 (vllm/entrypoints/rl/online/api_router.py, vllm/distributed/weight_transfer/ipc_engine.py):

- A server started with `--weight-transfer-config '{"backend": "ipc"}'` takes `POST /init_weight_transfer_engine` with
  `{"init_info": {"packed": false}}`, then for each update `/start_weight_update`, `/update_weights` and
  `/finish_weight_update`. Without that setting they fail with status 500.
- `update_info` has `names`, `dtype_names` ("bfloat16"), `shapes`, and `ipc_handles_pickled`: the base64 of a pickled
  list with a table for each weight, from the UUID of the card to the arguments of torch's `rebuild_cuda_tensor`. The
  server reads it only with `VLLM_ALLOW_INSECURE_SERIALIZATION=1`, since a pickle can run code: listen on loopback.

Facts, read in SGLang 0.5.9 and 0.5.23 (below python/sglang/srt: entrypoints/http_server.py, managers/tp_worker.py,
managers/scheduler_components/weight_updater.py, utils/common.py, utils/patch_torch.py):

- `POST /update_weights_from_tensor` takes `serialized_named_tensors`, `weight_version` and `flush_cache`. A refusal has
  status 400. The first is a list with a base64 for each rank of tensor parallelism: a pickled list of (name, tensor).
- 0.5.23 takes it only between `POST /begin_weight_update` and `/end_weight_update`, which 0.5.9 does not have.
- A tensor is a call of torch's `rebuild_cuda_tensor`, whose argument 6, the card, may be a UUID.
- The tensors are read outside any `try`: a server that cannot open them ends. `GET /server_info` returns its `device`,
  `tp_size`, `pp_size` and `dp_size`.
- 0.5.23 unpickles what torch needs for tensors, containers of Python, and a few names that call others, such as
  `functools.partial`; 0.5.9 all of `builtins` but `eval`, `exec` and `compile`, which can run code: listen on loopback.
- `/update_weights_from_ipc` needs the package `checkpoint-engine` in the server and ZeroMQ in the trainer.

For both:

- The server copies the weights while it updates; until it has finished, the memory must stay as it is.
- There is no such transfer on a CPU. For an emulated server a handle is `{"cpu": (NAME, OFFSET, BYTES)}` of a file in
  shared memory, which it reads without unpickling any object. An emulated SGLang that takes them says that its `device`
  is "host".
"""

from __future__ import annotations

import base64
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from transformers import PreTrainedModel

CPU = "cpu"
"""The key of a handle in the memory of the host."""
HOST = "host"
"""The `device` of an emulated SGLang that takes such handles."""
HOST_MEMORY = next(filter(Path.is_dir, [Path("/dev/shm")]), Path(gettempdir()))
"""Where files are in memory, on systems that have such a folder."""
PREFIX = "sleuth-weights-"
CARD_ARGUMENT = 6
"""The place of the card among the arguments of `rebuild_cuda_tensor`."""

Handle = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeights:
    """A model's weights by name, and a handle of each in this order.

    `device` is "cuda" or `HOST`. `SharedWeights(weights={"lm_head.weight": torch.zeros(32, 8)},
    handles=[{"cpu": ("sleuth-weights-x1", 0, 1024)}], device="host")`.
    """

    weights: dict[str, Tensor]
    handles: list[Handle]
    device: str

    def update_info(self) -> dict[str, Any]:
        """For vLLM's `/update_weights`."""
        return update_info_of(self.weights) | {"ipc_handles_pickled": _pickled(self.handles)}

    def serialized_named_tensors(self) -> list[str]:
        """For `/update_weights_from_tensor` of an SGLang on one card."""
        if self.device == HOST:
            names, dtypes, shapes = update_info_of(self.weights).values()
            return [_pickled(list(zip(names, (handle[CPU] for handle in self.handles), dtypes, shapes, strict=True)))]
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
def shared_weights(model: PreTrainedModel) -> Iterator[SharedWeights]:
    """Yields the handles of a model's weights, valid in the context, in which the weights must not change. Tied weights
    have both names, as servers of an untied copy need."""
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    on_card = model.device.type == "cuda"
    share = _on_card if on_card else _on_host
    with share(list(weights.values())) as handles:
        yield SharedWeights(weights=weights, handles=handles, device="cuda" if on_card else HOST)


@contextmanager
def _on_card(weights: list[Tensor]) -> Iterator[list[Handle]]:
    device = weights[0].device
    torch.cuda.synchronize(device)
    card = str(torch.cuda.get_device_properties(device).uuid)
    yield [{card: reduce_tensor(weight)[1]} for weight in weights]
    torch.cuda.ipc_collect()


@contextmanager
def _on_host(weights: list[Tensor]) -> Iterator[list[Handle]]:
    with NamedTemporaryFile(dir=HOST_MEMORY, prefix=PREFIX) as file:
        handles, offset = [], 0
        for weight in weights:
            file.write(weight.reshape(-1).view(torch.uint8).numpy().data)
            handles.append({CPU: (Path(file.name).name, offset, weight.nbytes)})
            offset += weight.nbytes
        file.flush()
        yield handles


def read_host_memory(name: str, offset: int, size: int) -> bytearray:
    """The bytes of a handle. Raises ValueError for another file than those of `shared_weights` or a place outside it,
    OSError if it is gone."""
    if not re.fullmatch(PREFIX + r"\w+", name):
        raise ValueError(f"{name[:60]!r} is no handle")
    with open(HOST_MEMORY / name, "rb") as file:
        if not 0 <= offset <= offset + size <= os.fstat(file.fileno()).st_size:
            raise ValueError(f"{name} has no {size} bytes from {offset} on")
        file.seek(offset)
        return bytearray(file.read(size))
