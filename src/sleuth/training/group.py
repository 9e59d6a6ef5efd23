"""The processes that a launcher such as torchrun has started, as `Ranks`."""

from __future__ import annotations

import os
import pickle
import platform
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from threading import Lock, Thread
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sleuth.ranks import Ranks
from sleuth.types import SleuthError, TransientError

ON_CPU, ON_GPU = "gloo", "cpu:gloo,cuda:nccl"
"""Backends for CPU tensors only, and for both."""
TIMEOUT = timedelta(hours=12)
"""How long a rank waits for the others, for example while a judge is slow. If a rank dies, the launcher ends the others
at once."""
RAISED_BY_FIRST = "rank 0 raised and prints this error"
"""Note on the same error when other ranks raise it."""
POLL_SECONDS = 0.02
ACCEPT_SECONDS = 1.0  # between looks at whether all ranks are connected
LOST = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "NCCL", "Timed out", "Socket")
"""Texts that mark an error as caused by the loss of another process."""

Item = TypeVar("Item")
Result = TypeVar("Result")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Processes(Ranks):
    """Ranks that are processes of one group. Records and figures are pickled and sent over gloo; that is safe between
    processes of one program started by one user. Weights and gradients use NCCL on GPUs."""

    gloo: list[Any]
    """A gloo group of all ranks; empty when they have parted."""
    lock: Any = field(default_factory=Lock)
    """Held while results are exchanged: two exchanges at once would mix."""

    def broadcast(self, work: Callable[[], Item]) -> Item:
        """Runs `work` on rank 0 only and returns its result, or raises its error, on every rank."""
        outcome: list[Any] = [None, None]  # result, error
        raised: BaseException | None = None
        if self.first:
            try:
                outcome = [work(), None]
            except Exception as error:
                outcome, raised = [None, _picklable(error, self.rank)], error
        dist.broadcast_object_list(outcome, src=0, group=self.gloo[0])
        if raised is not None:
            raise raised
        if outcome[1] is not None:
            outcome[1].add_note(RAISED_BY_FIRST)
            raise outcome[1]
        return outcome[0]

    def _joined(self, mine: list[Result], error: Exception | None, step: int = 0) -> list[Result]:
        with self.lock:
            outcomes = self.all_gather([(mine, None if error is None else _picklable(error, self.rank), step)])
        if len(steps := {at for *_, at in outcomes}) > 1:
            raise SleuthError(f"ranks exchange the results of different steps at once: {sorted(steps)}")
        if self.first and error is not None:
            raise error
        for theirs in (theirs for _, theirs, _ in outcomes if theirs is not None):
            if not self.first:
                theirs.add_note(RAISED_BY_FIRST)
            raise theirs from error
        return [item for found, *_ in outcomes for item in found]

    def shared(self, make: Callable[[], Item]) -> Item:
        """What `make` returns on rank 0; on the others an object whose methods rank 0 runs, in a thread, and whose
        `close` only ends the connection. Errors of methods are raised where they are called."""
        host = LOOPBACK if len({*self.all_gather([platform.node()])}) == 1 else os.environ["MASTER_ADDR"]
        made: list[Item] = []

        def serve() -> tuple[int, bytes]:
            made.append(make())
            return _served(made[0], "" if host != LOOPBACK else host, callers=self.world - 1)

        port, key = self.broadcast(serve)
        return made[0] if self.first else cast("Item", _Remote(Client((host, port), authkey=key)))

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
        return replace(self, gloo=[dist.new_group(backend="gloo", timeout=TIMEOUT)], lock=Lock())


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


def _picklable(error: Exception, rank: int) -> Exception:
    """The error, or a SleuthError with its message if it cannot be pickled; that of another rank than 0 names it."""
    try:
        sent = pickle.loads(pickle.dumps(error))
    except Exception:  # any error of a `__reduce__`
        sent = SleuthError(f"{type(error).__name__}: {error}")
    if rank:
        sent.args = tuple(f"rank {rank}: {problem}" for problem in sent.args)
    return sent


class _Remote:
    """An object of rank 0, whose methods this rank calls one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, Lock()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            with self._lock:
                self._connection.send((method, arguments))
                found, error = self._connection.recv()
        except (EOFError, OSError) as lost:
            raise RuntimeError(f"Connection closed by rank 0: {lost}") from None
        if error is not None:
            raise error
        return found


def _served(thing: Any, host: str, *, callers: int) -> tuple[int, bytes]:
    """The port of an interface and the key with which so many others call the methods of an object. Strangers, such as
    those who look for open ports, delay nobody: each has a thread of its own until it has shown the key."""
    key, server = secrets.token_bytes(), socket.create_server((host, 0), backlog=callers)
    joined: list[Connection] = []

    def answer(connection: Connection) -> None:
        with suppress(EOFError, OSError, AuthenticationError), connection:  # until it is closed
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            joined.append(connection)
            while True:
                method, arguments = connection.recv()
                try:
                    outcome = getattr(thing, method)(*arguments), None
                except Exception as error:  # raised where it was called
                    outcome = None, _picklable(error, 0)
                connection.send(outcome)

    def accept() -> None:
        with server:
            server.settimeout(ACCEPT_SECONDS)
            while len(joined) < callers:
                with suppress(OSError):
                    caller, _ = server.accept()
                    caller.setblocking(True)
                    Thread(target=answer, args=(Connection(caller.detach()),), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    return server.getsockname()[1], key


def _select_gpu(number: int) -> None:
    gpus = torch.cuda.device_count()
    if number >= gpus:
        raise SleuthError(
            f"rank {number} of this machine has no GPU: there are {gpus}; start at most {gpus} processes here "
            f"(torchrun --nproc-per-node {gpus})"
        )
    torch.cuda.set_device(number)
