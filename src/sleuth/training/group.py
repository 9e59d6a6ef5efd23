"""The processes that a launcher such as torchrun has started, as `Ranks`."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sleuth.ranks import Ranks
from sleuth.types import SleuthError, TransientError

ON_CPU, ON_GPU = "gloo", "cpu:gloo,cuda:nccl"
"""Backends for CPU tensors only, and for both."""
TIMEOUT = timedelta(hours=12)
"""How long a rank waits for the others, for example while rank 0 evaluates or a judge is slow. If a rank dies, the
launcher ends the others at once."""
RAISED_BY_FIRST = "rank 0 raised and prints this error"
"""Note on the same error when other ranks raise it."""
POLL_SECONDS = 0.02
LOST = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "NCCL", "Timed out", "Socket")
"""Texts that mark an error as caused by the loss of another process."""

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Processes(Ranks):
    """Ranks that are processes of one group. Records and figures are pickled and sent over gloo; that is safe between
    processes of one program started by one user. Weights and gradients use NCCL on GPUs."""

    gloo: list[Any]
    """A gloo group of all ranks; empty when they have parted."""

    def broadcast(self, work: Callable[[], Item]) -> Item:
        """Runs `work` on rank 0 only and returns its result, or raises its error, on every rank."""
        outcome: list[Any] = [None, None]  # result, error
        raised: BaseException | None = None
        if self.first:
            try:
                outcome = [work(), None]
            except Exception as error:
                outcome, raised = [None, _picklable(error)], error
        dist.broadcast_object_list(outcome, src=0, group=self.gloo[0])
        if raised is not None:
            raise raised
        if outcome[1] is not None:
            outcome[1].add_note(RAISED_BY_FIRST)
            raise outcome[1]
        return outcome[0]

    def all_gather(self, mine: Sequence[Item]) -> list[Item]:
        """The items of all ranks in rank order, on every rank."""
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, list(mine), group=self.gloo[0])
        return [item for items in gathered for item in items]

    def all_reduce(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sums over ranks in fp64, by name; every rank passes the same names."""
        names = sorted(mine)
        sums = torch.tensor([float(mine[name]) for name in names], dtype=torch.float64)
        dist.all_reduce(sums, group=self.gloo[0])
        return dict(zip(names, sums.tolist(), strict=True))

    def channel(self) -> Ranks:
        """The same ranks for another thread, by a gloo group of its own."""
        return replace(self, gloo=[dist.new_group(backend="gloo", timeout=TIMEOUT)])


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Yields this process's `Ranks`; a world of one without a launcher.

    On GPUs each rank uses the one of its local rank. A launcher may have selected it and initialised the process group
    already, as Ray Train does. Raises TransientError if another rank has gone; its own error gives the reason.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise SleuthError(
                f"WORLD_SIZE = {world} is set in the environment and {name} is not: start the processes with torchrun, "
                "or unset WORLD_SIZE"
            )
    if not dist.is_initialized():
        _init_process_group()
    gloo = [dist.new_group(backend="gloo", timeout=TIMEOUT)]
    try:
        yield Processes(rank=dist.get_rank(), world=world, gloo=gloo)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not any(sign in str(error) for sign in LOST):
            raise
        raise TransientError(
            f"rank {dist.get_rank()} lost the others: one of them ended, for the reason it printed; the same command "
            f"continues from the last checkpoint ({str(error).splitlines()[0][:120]})"
        ) from None
    dist.destroy_process_group()
    gloo.clear()  # joins its threads: one that gave a tensor back while Python ends would abort the process


def _init_process_group() -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _select_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, world = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    own = store_of_this_start(store, rank, world)
    dist.init_process_group(ON_GPU if on_gpu else ON_CPU, store=own, rank=rank, world_size=world, timeout=TIMEOUT)


def store_of_this_start(store: Store, rank: int, world: int) -> Store:
    """A view of the launcher's store with a prefix that is unique to this start of the ranks.

    torchrun keeps one store over restarts, and an early rank would read the addresses of the previous start
    (github.com/pytorch/pytorch/issues/135712). So each rank requests the prefix under a unique name, and rank 0 answers
    all requests until every rank has confirmed its answer.
    """
    name = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", name)
        first = store.get(f"answer/{name}").decode()  # waits
        store.set(f"answered/{first}/{rank}", "yes")
        return PrefixStore(first, store)
    waiting = set(range(1, world))
    while waiting:
        for other in waiting:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
        waiting = {other for other in waiting if not store.check([f"answered/{name}/{other}"])}
        time.sleep(POLL_SECONDS)
    return PrefixStore(name, store)


def _picklable(error: Exception) -> Exception:
    """The error, or a SleuthError with its message if it cannot be pickled."""
    try:
        pickle.dumps(error)
    except Exception:  # any error of a `__reduce__`
        return SleuthError(f"on the first rank: {type(error).__name__}: {error}")
    return error


def _select_gpu(number: int) -> None:
    gpus = torch.cuda.device_count()
    if number >= gpus:
        raise SleuthError(
            f"rank {number} of this machine has no GPU: there are {gpus}; start at most {gpus} processes here "
            f"(torchrun --nproc-per-node {gpus})"
        )
    torch.cuda.set_device(number)
