"""Ranks started, watched and restarted by Ray Train: what torchrun does, on a Ray cluster.

A rank runs the same program as under torchrun, with the same environment variables, in a Ray worker. The output of rank
0 is sent to the launching process and printed there.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty
from types import FrameType
from typing import Any

from sleuth.own.permission import CODE
from sleuth.runs.interruption import SAME_REQUEST_SECONDS, SIGNALS, Interrupted, forwarded_to, handling
from sleuth.training.group import ON_CPU, ON_GPU, TIMEOUT
from sleuth.types import RetrievalFailed, SleuthError, TransientError

LOCAL = "local"
"""The address of a Ray that runs on this machine for one run only."""
STORE_BYTES = 128 * 2**20
"""Shared memory of a local Ray, which transfers little data."""
CONNECT_SECONDS = 5.0
POLL_SECONDS = 0.2
Message = tuple[str, Any]
"""What a rank sends to the launching process: text that rank 0 wrote to ("stdout" or "stderr", ...), an ("error", (its
class, its line)) that a restart would not fix, or that it ("stopped", (a line, the number of the signal))."""
LOCAL_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: bind to loopback only
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_worker_niceness": "0",  # Ray's default of 15 gives a busy machine to all other processes
}
"""For a local Ray: refuses other users, watches for no preemption, and gives ranks normal priority as torchrun does."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Defaults for Ray's environment: no usage reports, and working folder and `print` unchanged."""


class RanksEndedError(Exception):
    """The ranks ended and no restarts are left. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """Where ranks run: `address` is `local`, `auto` (the cluster of this machine) or HOST:PORT. `gpus`: whether each
    rank needs a GPU (None: if the cluster has any). `notes`: a folder shared by all machines for Ray Train's state,
    removed after the run. `signal`: the file in it through which the ranks get the number of this process's signal."""

    address: str
    ranks: int
    restarts: int
    gpus: bool | None
    notes: Path
    signal: Path


def run_on_ray(work: Callable[[], None], cluster: RayCluster) -> None:
    """Runs `work` on every rank until all are done. It must be a function of a module that all machines have, or a
    `partial` of one.

    Raises SleuthError for problems of the cluster and for a SleuthError of a rank; RanksEndedError if ranks fail more
    often than they may restart; Interrupted after Ctrl-C or SIGTERM: the first one lets the ranks finish their step and
    save it, a second one ends them at once.
    """
    ray = require_ray(cluster.address)
    cluster.signal.unlink(missing_ok=True)  # of a launcher that was killed
    _connect(ray, cluster)
    try:
        from ray.util.queue import Queue

        messages = Queue(actor_options={"num_cpus": 0})
        trainer = _trainer(ray, work, cluster, messages)
        with handling(SIGNALS, partial(_forward, cluster.signal)):
            _follow(trainer.fit, messages)
    except ray.exceptions.RayError as error:
        raise RanksEndedError(
            f"the Ray at {cluster.address} is gone: {_short(error)}; the same command continues from the last "
            "checkpoint"
        ) from error
    finally:
        ray.shutdown()
        shutil.rmtree(cluster.notes, ignore_errors=True)


def require_ray(address: str) -> Any:
    """The module `ray`, imported with our defaults for its environment; the user's settings win. Raises SleuthError if
    it is not installed or nothing answers at the address."""
    local = LOCAL_ENVIRONMENT | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}  # else Ray stores one in the home folder
    defaults = ENVIRONMENT | (local if address == LOCAL else {})
    os.environ.update({name: value for name, value in defaults.items() if name not in os.environ})

    try:
        import ray
        import ray.train
    except ImportError:
        raise SleuthError('--ray needs Ray Train, which is not installed: pip install "sleuth[ray]"') from None
    _require_reachable(address)
    return ray


def _connect(ray: Any, cluster: RayCluster) -> None:
    cores = max(cluster.ranks, os.cpu_count() or 1)  # each rank requests one, and a small machine may have fewer
    local = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    options = local if cluster.address == LOCAL else {}
    try:
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:  # no cluster, or one with another version of Ray
        raise SleuthError(f"--ray {cluster.address}: cannot be joined: {_short(error)}") from None


def _require_reachable(address: str) -> None:
    """Raises SleuthError if nothing answers; Ray itself would try for minutes and then end the process."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise SleuthError(
            f'--ray {address}: should be "local", "auto" on a machine of the cluster, or HOST:PORT of its head, as '
            "`ray start` prints it; from elsewhere, submit the command as a job: ray job submit -- sleuth train ..."
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise SleuthError(f"--ray {address}: nobody answers there ({error.strerror or error})") from None


def _trainer(ray: Any, work: Callable[[], None], cluster: RayCluster, messages: Any) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train.torch import TorchConfig, TorchTrainer

    class PrintFailures(UserCallback):
        """Prints why ranks failed and whether they restart."""

        failures = 0

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            self.failures += 1
            restart = f"the ranks are started again ({self.failures} of {cluster.restarts}), from the last checkpoint\n"
            lines = describe_failures(worker_exceptions) + (restart if self.failures <= cluster.restarts else "")
            messages.put(("stderr", lines))

    gpus, signal, code = _gpus(ray, cluster), cluster.signal.absolute(), replace(CODE)
    return TorchTrainer(
        work_as_rank,
        train_loop_config={"work": work, "folder": os.getcwd(), "messages": messages, "signal": signal, "code": code},
        torch_config=TorchConfig(backend=ON_GPU if gpus else ON_CPU, timeout_s=int(TIMEOUT.total_seconds())),
        scaling_config=ScalingConfig(num_workers=cluster.ranks, use_gpu=gpus),
        run_config=RunConfig(
            storage_path=str(cluster.notes.absolute()),
            failure_config=FailureConfig(max_failures=cluster.restarts),
            callbacks=[PrintFailures()],
        ),
    )


def _gpus(ray: Any, cluster: RayCluster) -> bool:
    """Whether each rank requests a GPU. Prints a warning if the cluster has too few: Ray then waits for more."""
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0) > 0 if cluster.gpus is None else cluster.gpus
    kind = "GPU" if gpus else "CPU"
    count = int(resources.get(kind, 0))
    if count < cluster.ranks:
        if cluster.address == LOCAL:
            raise SleuthError(f"--ranks {cluster.ranks}: this machine has {count} {kind}s, and each rank needs one")
        print(
            f"the cluster has {count} {kind}s, and {cluster.ranks} ranks need one each: they wait until there are more",
            file=sys.stderr,
        )
    return gpus


def _forward(file: Path, number: int, frame: FrameType | None) -> None:
    """Passes the first signal on to the ranks; raises Interrupted for the second."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))
    elif abs(time.time() - file.stat().st_mtime) > SAME_REQUEST_SECONDS:
        raise Interrupted("interrupted", number)


def _follow(fit: Callable[[], object], messages: Any) -> None:
    """Runs `fit` in a thread, so that this one gets Ctrl-C, and prints the messages that arrive meanwhile."""
    errors: list[BaseException] = []
    stopped: Interrupted | None = None

    def train() -> None:
        try:
            fit()
        except BaseException as error:
            errors.append(error)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    while training.is_alive() or not messages.empty():
        try:
            kind, content = messages.get(timeout=POLL_SECONDS)
        except Empty:
            continue
        if kind == "error":
            raise content[0](content[1])
        if kind == "stopped":
            stopped = Interrupted(*content)
        else:
            print(content, end="", file=getattr(sys, kind), flush=True)
    if errors:
        from ray.train import WorkerGroupError

        reason = "see the errors above" if isinstance(errors[0], WorkerGroupError) else _short(errors[0])
        raise RanksEndedError(
            f"the ranks ended and are not started again (--restarts): {reason}; the same command continues from the "
            "last checkpoint"
        ) from errors[0]
    if stopped is not None:
        raise stopped


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def work_as_rank(config: dict[str, Any]) -> None:
    """Runs `config["work"]` in `config["folder"]`; rank 0 forwards its output to the queue `config["messages"]`.
    The number of a signal that the launching process got is in the file `config["signal"]`; `config["code"]` is what it
    may run."""
    messages, rank = config["messages"], int(os.environ["RANK"])
    CODE.take(config["code"])
    try:
        _change_folder(config["folder"])
        with forward_output(messages) if rank == 0 else nullcontext(), forwarded_to(config["signal"]):
            config["work"]()
    except Interrupted as stopped:  # the work is done as far as Ray is concerned
        if rank == 0:
            messages.put(("stopped", (str(stopped), stopped.number)))
    except SleuthError as error:
        if not isinstance(error, TransientError):
            messages.put(("error", (type(error), str(error))))
        raise


def _change_folder(folder: str) -> None:
    """Changes to the launcher's working folder, to which a recipe's paths are relative on every machine."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise SleuthError(
            f"{folder}: {error.strerror} on {socket.gethostname()}; working folder, run, model and data must be at the "
            "same paths on all machines"
        ) from None


@contextmanager
def forward_output(messages: Any) -> Iterator[None]:
    """In this context, printed text goes to the queue `messages`, line by line."""
    with (
        redirect_stdout(_QueueStream("stdout", messages)) as out,
        redirect_stderr(_QueueStream("stderr", messages)) as err,
    ):
        try:
            yield
        finally:
            out.flush()
            err.flush()


class _QueueStream(io.TextIOBase):
    """A text stream whose lines go to a queue."""

    encoding = "utf-8"

    def __init__(self, stream: str, messages: Any) -> None:
        self._stream = stream
        self._messages = messages
        self._buffer = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._buffer += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._buffer:
            self._messages.put((self._stream, self._buffer))
            self._buffer = ""


def describe_failures(errors: Mapping[int, Exception]) -> str:
    """One line per failed rank with its reason; ranks that only lost others are left out if there is another reason."""
    raised = {rank: getattr(error, "_base_exc", None) for rank, error in errors.items()}  # None: the process died
    causes = {rank: error for rank, error in raised.items() if not isinstance(error, TransientError)} or raised
    return "".join(f"rank {rank}: {_cause(causes[rank], errors[rank])}\n" for rank in sorted(causes))


def _cause(raised: BaseException | None, error: Exception) -> str:
    if raised is None:
        return "its process is gone; it was killed, or its machine failed"
    if isinstance(raised, SleuthError | RetrievalFailed | OSError):
        return " ".join(str(raised).split())
    return str(error).rstrip()  # with its traceback
