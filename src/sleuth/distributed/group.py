"""The process group that a launcher such as torchrun has prepared, as `Ranks`."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sleuth.ranks import Ranks
from sleuth.types import SleuthError, TransientError

ON_CPU, ON_GPU = "gloo", "cpu:gloo,cuda:nccl"
"""What tensors go over, by where they are."""
TIMEOUT = timedelta(hours=12)
"""How long a rank waits for the others: a judge that is slow, an evaluation that one rank makes while the others wait.
Nobody waits so long for a rank that has died: its launcher ends them all."""
OF_FIRST = "the first rank raised this, and says it"
"""A note at what other ranks raise with it."""
LOOK_SECONDS = 0.02
LOST = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "NCCL", "Timed out", "Socket")
"""What is in the message of an error that comes of another process being gone."""

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Processes(Ranks):
    """Ranks that are processes of one group. What they tell each other of records and figures goes over the processors'
    network (gloo), pickled: they are one program, started together by one person. Weights and gradients go over NCCL
    where there are GPUs."""

    talk: Any = None  # a gloo group of all ranks

    def broadcast(self, work: Callable[[], Item]) -> Item:
        """`work`, done by the first rank alone: what it returned, or raised, on every rank."""
        told: list[Any] = [None, None]
        raised: BaseException | None = None
        if self.first:
            try:
                told = [work(), None]
            except Exception as error:
                told, raised = [None, _sendable(error)], error
        dist.broadcast_object_list(told, src=0, group=self.talk)
        if raised is not None:
            raise raised
        if told[1] is not None:
            told[1].add_note(OF_FIRST)
            raise told[1]
        return told[0]

    def all_gather(self, mine: Sequence[Item]) -> list[Item]:
        """The items of all ranks, in the order of the ranks, on every rank."""
        of_ranks: list[Any] = [None] * self.world
        dist.all_gather_object(of_ranks, list(mine), group=self.talk)
        return [item for of_rank in of_ranks for item in of_rank]

    def all_reduce(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sums over the ranks, by name, added in fp64; every rank has the same names."""
        names = sorted(mine)
        sums = torch.tensor([float(mine[name]) for name in names], dtype=torch.float64)
        dist.all_reduce(sums, group=self.talk)
        return dict(zip(names, sums.tolist(), strict=True))


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that a launcher has started, of which this process is one; a world of one where there is no launcher.

    On a GPU each rank takes the card of its number on its machine. A launcher may have done that and made the process
    group already, as Ray Train does. Raises TransientError where another rank is gone: what that one said tells why.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise SleuthError(
                f"WORLD_SIZE = {world} in the environment says that {world} processes train, and {name} is not set: "
                "start them with torchrun, or unset WORLD_SIZE"
            )
    if not dist.is_initialized():
        _begin()
    try:
        ranks = Processes(rank=dist.get_rank(), world=world, talk=dist.new_group(backend="gloo", timeout=TIMEOUT))
        yield ranks
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not any(sign in str(error) for sign in LOST):
            raise
        raise TransientError(
            f"rank {dist.get_rank()} lost the others: one of them ended, and what it said tells why; the same command "
            f"goes on from the last checkpoint ({str(error).splitlines()[0][:120]})"
        ) from None
    dist.destroy_process_group()


def _begin() -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _take_card(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, world = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    own = own_part(store, rank, world)
    dist.init_process_group(ON_GPU if on_gpu else ON_CPU, store=own, rank=rank, world_size=world, timeout=TIMEOUT)


def own_part(store: Store, rank: int, world: int) -> Store:
    """The part of a launcher's store that belongs to this start of the ranks alone.

    torchrun keeps one store while it starts ranks again, and a rank that is early would read there where the others
    were before (github.com/pytorch/pytorch/issues/135712). So each asks under a name that nobody has used, and the
    first answers whatever was asked, until every other has told it that it is answered.
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
        time.sleep(LOOK_SECONDS)
    return PrefixStore(name, store)


def _sendable(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot be pickled."""
    try:
        pickle.dumps(error)
    except Exception:  # whatever its author forgot, the others are to hear what happened
        return SleuthError(f"on the first rank: {type(error).__name__}: {error}")
    return error


def _take_card(number: int) -> None:
    cards = torch.cuda.device_count()
    if number >= cards:
        raise SleuthError(
            f"rank {number} of this machine has no GPU: there are {cards}; start at most {cards} processes here "
            f"(torchrun --nproc-per-node {cards})"
        )
    torch.cuda.set_device(number)
