"""Ranks that Ray Train starts, watches and starts again: what torchrun does, on a cluster of Ray.

A rank is the same program as under torchrun, with the same names in its environment; Ray's workers are where it runs.
What the first rank prints is sent to the process that asked for the ranks, and printed there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from sleuth.distributed.group import ON_CPU, ON_GPU, TIMEOUT
from sleuth.distributed.ray_worker import Printed, Wrong, endings, work_as_rank
from sleuth.types import SleuthError

LOCAL = "local"
"""The address of a Ray that is started on this machine for one run, and ended with it."""
STORE_BYTES = 128 * 2**20
"""Shared memory of a local Ray, which moves next to nothing."""
REACHED_SECONDS = 5.0
HEARD_SECONDS = 0.2
OWN = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: without a cluster Ray listens on the loopback alone
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_worker_niceness": "0",  # Ray's own default of 15 leaves a busy machine to everybody else
}
"""A local Ray answers nobody else, no machine is taken from it, and its ranks are worth as much as torchrun's."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What Ray is told by its environment, unless that says otherwise: to report to nobody, to leave working folder and
`print` as they are."""


class RanksEndedError(Exception):
    """The ranks ended, and were not started again: they had been as often as was asked. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """Where ranks run: `local`, `auto` (the cluster of this machine) or HOST:PORT; how many; how often they may be
    started again; whether each needs a GPU (None: where the cluster has any); a folder that all machines see, for what
    Ray Train notes, which is removed behind the run."""

    address: str
    ranks: int
    restarts: int
    gpus: bool | None
    notes: Path


def run_on_ray(work: Callable[[], None], place: RayCluster) -> None:
    """Do `work` on every rank, until it is done on all. It is a function of a module that the machines have, or a
    `partial` of one.

    Raises SleuthError for what is wrong with the cluster and for what a rank raised as such; RanksEndedError where
    ranks ended otherwise once more than they may.
    """
    ray = require_ray(place.address)
    _connect(ray, place)
    try:
        from ray.util.queue import Queue

        messages = Queue(actor_options={"num_cpus": 0})
        trainer = _trainer(ray, work, place, messages)
        _follow(trainer.fit, messages)
    except ray.exceptions.RayError as error:
        raise RanksEndedError(
            f"the Ray at {place.address} is gone: {_short(error)}; the same command goes on from the last checkpoint"
        ) from error
    finally:
        ray.shutdown()
        shutil.rmtree(place.notes, ignore_errors=True)


def require_ray(address: str) -> Any:
    """Ray itself, which reads its environment when it is imported: what the user has set there stays. Raises
    SleuthError where it is not installed, and where nobody answers at the address."""
    own = OWN | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}  # else Ray would keep one in the home folder
    told = QUIET | (own if address == LOCAL else {})
    os.environ.update({name: value for name, value in told.items() if name not in os.environ})

    try:
        import ray
        import ray.train
    except ImportError:
        raise SleuthError('--ray needs Ray Train, which is not installed: pip install "sleuth[ray]"') from None
    _require_reached(address)
    return ray


def _connect(ray: Any, place: RayCluster) -> None:
    cores = max(place.ranks, os.cpu_count() or 1)  # each rank asks for one, and a small machine has fewer
    own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        ray.init(place.address, log_to_driver=False, logging_level="ERROR", **(own if place.address == LOCAL else {}))
    except (ConnectionError, RuntimeError, ValueError) as error:  # no cluster is there, or one of another Ray
        raise SleuthError(f"--ray {place.address}: cannot be joined: {_short(error)}") from None


def _require_reached(address: str) -> None:
    """Ray would try for minutes, and end the process."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise SleuthError(
            f'--ray {address}: should be "local", "auto" on a machine of the cluster, or HOST:PORT of its head, as '
            "`ray start` tells it; from elsewhere, submit the command as a job: ray job submit -- sleuth train ..."
        )
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_SECONDS).close()
    except OSError as error:
        raise SleuthError(f"--ray {address}: nobody answers there ({error.strerror or error})") from None


def _trainer(ray: Any, work: Callable[[], None], place: RayCluster, messages: Any) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train.torch import TorchConfig, TorchTrainer

    class Telling(UserCallback):
        """Says why ranks are started again."""

        times = 0

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            self.times += 1
            again = f"the ranks are started again ({self.times} of {place.restarts}), from the last checkpoint\n"
            lines = endings(worker_exceptions) + (again if self.times <= place.restarts else "")
            messages.put(Printed("stderr", lines))

    gpus = _gpus(ray, place)
    return TorchTrainer(
        work_as_rank,
        train_loop_config={"work": work, "folder": os.getcwd(), "messages": messages},
        torch_config=TorchConfig(backend=ON_GPU if gpus else ON_CPU, timeout_s=int(TIMEOUT.total_seconds())),
        scaling_config=ScalingConfig(num_workers=place.ranks, use_gpu=gpus),
        run_config=RunConfig(
            storage_path=str(place.notes.absolute()),
            failure_config=FailureConfig(max_failures=place.restarts),
            callbacks=[Telling()],
        ),
    )


def _gpus(ray: Any, place: RayCluster) -> bool:
    """Whether each rank asks for a GPU. Says it where there are too few of what is asked for: Ray waits for more."""
    there = ray.cluster_resources()
    gpus = there.get("GPU", 0) > 0 if place.gpus is None else place.gpus
    kind, has = ("GPU", int(there.get("GPU", 0))) if gpus else ("CPU", int(there.get("CPU", 0)))
    if has < place.ranks:
        if place.address == LOCAL:
            raise SleuthError(f"--ranks {place.ranks}: this machine has {has} {kind}s, and each rank needs one")
        print(
            f"the cluster has {has} {kind}s, and {place.ranks} ranks need one each: they wait until there are more",
            file=sys.stderr,
        )
    return gpus


def _follow(fit: Callable[[], object], messages: Any) -> None:
    """Print what comes while `fit` runs. It does so in a thread, so that Ctrl-C is this one's."""
    ended: list[BaseException] = []

    def train() -> None:
        try:
            fit()
        except BaseException as error:
            ended.append(error)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    while training.is_alive() or not messages.empty():
        try:
            message = messages.get(timeout=HEARD_SECONDS)
        except Empty:
            continue
        if isinstance(message, Wrong):
            raise SleuthError(message.line)
        stream = sys.stdout if message.stream == "stdout" else sys.stderr
        stream.write(message.text)
        stream.flush()
    if ended:
        from ray.train import WorkerGroupError

        told = isinstance(ended[0], WorkerGroupError)
        why = "what ended them is told above" if told else _short(ended[0])
        raise RanksEndedError(
            f"the ranks ended and are not started again (--restarts): {why}; the same command goes on from the last "
            "checkpoint"
        ) from ended[0]


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
