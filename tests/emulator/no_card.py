"""What a learner without a card sends weights by to emulated servers of its process: gloo in place of NCCL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sleuth.engines.remote.weight_transfer import ID_BYTES, GroupError

GLOO: Any = torch.distributed  # not all of it has types
LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(seconds=20)


@contextmanager
def no_card() -> Iterator[None]:
    """In the context, learners on a CPU send their weights as those on a card do."""
    with (
        patch("sleuth.engines.remote.pool.is_on_card", lambda model: True),
        patch("sleuth.engines.remote.weight_transfer.NcclGroup", GlooGroup),
    ):
        yield


class GlooGroup:
    """As `NcclGroup`. The bytes of its id are the port of a `TCPStore`."""

    def __init__(self, device: torch.device, unique_id: bytes | None = None) -> None:
        port = int(unique_id.rstrip(b"\0")) if unique_id is not None else 0
        how = {"is_master": unique_id is None, "wait_for_workers": False, "timeout": TIMEOUT}
        self._store = GLOO.TCPStore(LOOPBACK, port, **how)
        self.unique_id = unique_id or str(self._store.port).encode().ljust(ID_BYTES, b"\0")
        self._is_aborted = False

    def join(self, size: int, rank: int = 0) -> None:
        """See `NcclGroup`. Waits here for the others: gloo's own waiting cannot be ended."""
        self._store.set(str(rank), "here")
        while not self._store.check([str(other) for other in range(size)]):
            if self._is_aborted:
                raise GroupError("gloo: aborted")
            time.sleep(0.01)
        options = GLOO.ProcessGroupGloo._Options()
        options._devices = [GLOO.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._timeout = TIMEOUT
        try:
            self._group = GLOO.ProcessGroupGloo(self._store, rank, size, options)
            self._group.allreduce(torch.zeros(1)).wait()
        except RuntimeError as error:
            raise GroupError(f"gloo: {error}") from None

    def broadcast(self, weights: Sequence[Tensor]) -> None:
        """See `NcclGroup`."""
        try:
            for weight in weights:
                self._group.broadcast(weight, root=0).wait()
        except RuntimeError as error:
            raise GroupError(f"gloo: {error}") from None

    def abort(self) -> None:
        """Ends what waits in `join`; what waits in `broadcast` ends by its timeout."""
        self._is_aborted = True
