"""Functions of a test run on several ranks of this machine, each in a process of its own (gloo), and `sleuth` on two
ranks, as a person starts it."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from forked import forking, program

from sleuth.ranks import Ranks
from sleuth.training.group import join_ranks


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(ranks, *arguments)` returned on each rank. `work` is a function of a module's own."""
    if world == 1:
        return [work(Ranks(), *copy.deepcopy(arguments))]  # as another process would have them
    context = forking()
    results: Any = context.Queue()
    port = _free_port()
    workers = [
        context.Process(target=_one, args=(rank, world, port, results, pickle.dumps((work, arguments))))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    try:
        told = dict(pickle.loads(results.get(timeout=300)) for _ in workers)
    finally:
        for worker in workers:
            worker.join(timeout=10)
            worker.kill()
    errors = [value for failed, value in told.values() if failed]
    assert not errors, "\n".join(errors)
    return [told[rank][1] for rank in range(world)]


def _one(rank: int, world: int, port: int, results: Any, asked: bytes) -> None:
    """Tensors come and go as bytes: else they would be shared memory, which every rank writes to."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        with join_ranks() as ranks:
            work, arguments = pickle.loads(asked)
            results.put(pickle.dumps((rank, (False, work(ranks, *arguments)))))
    except BaseException:
        results.put(pickle.dumps((rank, (True, f"rank {rank}: {traceback.format_exc()}"))))
        raise


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


# -- sleuth ------------------------------------------------------------------------------------------------------------

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """By torchrun."""
    return started([*LAUNCHER, "-m", "--", "sleuth", *arguments])


def torchrun_forking(*arguments: str) -> subprocess.Popen[str]:
    """By torchrun, whose ranks are forked from a process with their imports instead of making them again."""
    return started([*LAUNCHER, "--no-python", "--", *program(), *arguments])


def on_ray(*arguments: str) -> subprocess.Popen[str]:
    """By a Ray of this machine."""
    return started([sys.executable, "-m", "sleuth", *arguments, "--ray", "local", "--ranks", "2"])


def started(command: list[str]) -> subprocess.Popen[str]:
    """A process, all that it says together."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What it said, when it has ended."""
    said, _ = process.communicate(timeout=600)
    return said
