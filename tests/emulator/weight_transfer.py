"""Weights that an emulated server takes without a folder, by the requests of vLLM and SGLang (`emulator.no_card`)."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from emulator.no_card import CARD, GlooGroup, rebuilt
from sleuth.engines.remote.weight_transfer import CARD_ARGUMENT
from sleuth.types import SleuthError

NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
INIT_INFO = {"nccl_unique_id_b64", "rank_offset", "world_size", "packed"}
ALLOWED_BY_SGLANG = {
    ("torch", "Size"),
    ("torch", "bfloat16"),
    ("torch", "float32"),
    ("torch", "Tensor"),
    ("torch.storage", "TypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
}
"""Of `SafeUnpickler.ALLOWED_GLOBALS` in python/sglang/srt/utils/common.py, 0.5.23."""


class ReadAsSglang(pickle.Unpickler):
    """Refuses what SGLang does, and rebuilds tensors of the card that has the UUID."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in ALLOWED_BY_SGLANG:
            raise pickle.UnpicklingError(f"{module_name}.{global_name}")
        return self._rebuilt if global_name == "rebuild_cuda_tensor" else super().find_class(module_name, global_name)

    def _rebuilt(self, *arguments: Any) -> Tensor:
        assert arguments[CARD_ARGUMENT] == CARD
        return rebuilt(*arguments)


def named_tensors(payloads: Sequence[str]) -> dict[str, Tensor]:
    """Copies of the weights in SGLang's `serialized_named_tensors`."""
    [pickled] = payloads
    return dict(ReadAsSglang(io.BytesIO(base64.b64decode(pickled, validate=True))).load())


def received_weights(info: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the weights that vLLM's `update_info` names."""
    handles = pickle.loads(base64.b64decode(info["ipc_handles_pickled"], validate=True))
    state = {name: rebuilt(*handle[CARD]) for name, handle in zip(info["names"], handles, strict=True)}
    assert {name: (weight.dtype, weight.shape) for name, weight in state.items()} == {
        name: (getattr(torch, dtype), torch.Size(shape)) for name, dtype, shape in _announced(info)
    }
    return state


class ReceivedBroadcast:
    """Weights by broadcast, as from vLLM's backend `nccl`. Raises SleuthError for a request without an id."""

    def __init__(self) -> None:
        self._group: GlooGroup | None = None

    async def join(self, info: Mapping[str, Any]) -> None:
        """Joins the trainer's group."""
        if missing := sorted(INIT_INFO - info.keys()):
            raise SleuthError(f"Invalid init_info for NCCLWeightTransferEngine: missing {', '.join(missing)}")
        assert info["packed"] is False
        self._group = GlooGroup(torch.device("cpu"), base64.b64decode(info["nccl_unique_id_b64"], validate=True))
        await asyncio.to_thread(self._group.join, info["world_size"], info["rank_offset"])

    async def receive(self, info: Mapping[str, Any]) -> dict[str, Tensor]:
        """The weights that an `update_info` announces."""
        assert self._group is not None
        state = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in _announced(info)}
        await asyncio.to_thread(self._group.broadcast, list(state.values()))
        return state


def _announced(info: Mapping[str, Any]) -> Any:
    return zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
