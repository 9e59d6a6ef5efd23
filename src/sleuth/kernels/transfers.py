"""Transfers between the host and a card that the host does not wait for.

torch's plain `to` waits for all that the card still has to do, in both directions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def sent(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The array on `device`; for a card it is on its way, through pinned memory, which torch keeps until it is read."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def send(array: np.ndarray, target: Tensor) -> None:
    """Overwrites `target` by the array, as `sent` sends it."""
    tensor = torch.from_numpy(array)
    target.copy_(tensor.pin_memory() if target.device.type == "cuda" else tensor, non_blocking=True)


class Arrival:
    """Numbers of a card on their way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._numbers = tensor
        if tensor.device.type == "cuda":
            self._numbers = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._numbers.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> np.ndarray:
        """The numbers; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.numpy()
