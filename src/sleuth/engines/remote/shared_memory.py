"""Weights handed to a vLLM on the same machine as handles of memory, without a folder.

Facts, read in vLLM 0.32.0 (vllm/entrypoints/rl/online/api_router.py, vllm/distributed/weight_transfer/ipc_engine.py):

- A server started with `--weight-transfer-config '{"backend": "ipc"}'` takes `POST /init_weight_transfer_engine` with
  `{"init_info": {"packed": false}}`, then for each update `/start_weight_update`, `/update_weights` and
  `/finish_weight_update`. Without that setting they fail with status 500.
- `update_info` has `names`, `dtype_names` ("bfloat16"), `shapes`, and `ipc_handles_pickled`: the base64 of a pickled
  list with a table for each weight, from the UUID of the card to the arguments of torch's `rebuild_cuda_tensor`. The
  server reads it only with `VLLM_ALLOW_INSECURE_SERIALIZATION=1`, since a pickle can run code: listen on loopback.
- The server copies the weights while it updates; until it has finished, the memory must stay as it is.
- There is no such transfer on a CPU. For the emulated server a handle is `{"cpu": (NAME, OFFSET, BYTES)}` of a file in
  shared memory, which it reads without unpickling any object.
"""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from transformers import PreTrainedModel

CPU = "cpu"
"""The key of a handle in the memory of the host."""
HOST_MEMORY = next(filter(Path.is_dir, [Path("/dev/shm")]), Path(gettempdir()))
"""Where files are in memory, on systems that have such a folder."""
PREFIX = "sleuth-weights-"


@contextmanager
def shared_weights(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Yields the `update_info` of a model's weights, valid in the context, in which the weights must not change. Tied
    weights have both names, as servers of an untied copy need."""
    state = model.state_dict()
    names = {
        "names": list(state),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in state.values()],
        "shapes": [list(weight.shape) for weight in state.values()],
    }
    handles = _on_card if model.device.type == "cuda" else _on_host
    with handles([weight.detach().contiguous() for weight in state.values()]) as of_weights:
        yield names | {"ipc_handles_pickled": base64.b64encode(pickle.dumps(of_weights)).decode()}


@contextmanager
def _on_card(weights: list[Tensor]) -> Iterator[list[dict[str, tuple[Any, ...]]]]:
    device = weights[0].device
    torch.cuda.synchronize(device)
    card = str(torch.cuda.get_device_properties(device).uuid)
    yield [{card: reduce_tensor(weight)[1]} for weight in weights]
    torch.cuda.ipc_collect()


@contextmanager
def _on_host(weights: list[Tensor]) -> Iterator[list[dict[str, tuple[Any, ...]]]]:
    with NamedTemporaryFile(dir=HOST_MEMORY, prefix=PREFIX) as file:
        handles, offset = [], 0
        for weight in weights:
            file.write(weight.reshape(-1).view(torch.uint8).numpy().data)
            handles.append({CPU: (Path(file.name).name, offset, weight.nbytes)})
            offset += weight.nbytes
        file.flush()
        yield handles


def read_host_memory(name: str, offset: int, size: int) -> bytearray:
    """The bytes of a handle. Raises ValueError for another file than those of `shared_weights`, OSError if it is
    gone."""
    if not re.fullmatch(PREFIX + r"\w+", name):
        raise ValueError(f"{name[:60]!r} is no handle")
    with open(HOST_MEMORY / name, "rb") as file:
        file.seek(offset)
        return bytearray(file.read(size))
