"""The bytes that a computation holds at most, counted operation by operation."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """In this context `peak` is the maximum of the bytes of all results that are alive at the same time, on any device,
    "meta" and fake ones too. What one operation allocates and frees inside is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
