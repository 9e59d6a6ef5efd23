"""Weights that an emulated vLLM takes by NCCL, without a folder (`emulator.no_card`)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from emulator.no_card import GlooGroup
from sleuth.types import SleuthError

NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
INIT_INFO = {"nccl_unique_id_b64", "rank_offset", "world_size", "packed"}


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
        announced = zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        state = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in announced}
        await asyncio.to_thread(self._group.broadcast, list(state.values()))
        return state
