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
- There is no such transfer on a CPU.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from transformers import PreTrainedModel

CARD_ARGUMENT = 6
"""The place of the card among the arguments of `rebuild_cuda_tensor`."""

Handle = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeights:
    """A model's weights by name, and a handle of each in this order: from the UUID of the card to the arguments of
    `rebuild_cuda_tensor`.

    `SharedWeights(weights={"lm_head.weight": weight}, handles=[{"GPU-1": reduce_tensor(weight)[1]}])`.
    """

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
def shared_weights(model: PreTrainedModel) -> Iterator[SharedWeights]:
    """Yields the handles of a model's weights, valid in the context, in which the weights must not change. Tied weights
    have both names, as servers of an untied copy need."""
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    with handles_of(list(weights.values())) as handles:
        yield SharedWeights(weights=weights, handles=handles)


@contextmanager
def handles_of(weights: list[Tensor]) -> Iterator[list[Handle]]:
    """Yields a handle of each weight, all on one card."""
    device = weights[0].device
    torch.cuda.synchronize(device)
    card = str(torch.cuda.get_device_properties(device).uuid)
    yield [{card: reduce_tensor(weight)[1]} for weight in weights]
    torch.cuda.ipc_collect()
