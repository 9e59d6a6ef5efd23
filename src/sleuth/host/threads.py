"""How many threads a process computes with on a CPU, and how those threads wait for each other.

A thread that waits by spinning holds a core. On a machine that nobody else uses this is fastest; beside another
process every parallel loop then waits for a thread that the system has suspended, and a step takes several times as
long. So the number of threads is chosen once, by the cores that are free and by the size of the model, and how long a
thread spins follows the load of the machine while the process runs. Only the number can affect results; loops whose
results it cannot affect follow the load with their number too.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from sleuth.host.memory import text_of
from sleuth.types import SleuthError

NUMBER_VARIABLE = "OMP_NUM_THREADS"
SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPIN = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"}
"""How long a thread spins before it sleeps: GNU's library counts iterations (100,000 are 0.5 to 3 ms), LLVM's, which is
Apple's and Intel's too, counts milliseconds (200 by default)."""

WEIGHTS_PER_THREAD = 100_000
"""Weights, embeddings left out, that a thread should have for itself. With 790,000 a second thread samples 1.4 times
and updates 1.7 times as fast, with 100,000 1.1 and 1.6 times."""

PROBE_SECONDS, PROBES = 0.2, 3
"""Of several probes the best counts: a neighbour of a moment costs no thread for hours."""
WATCH_SECONDS = 0.5
CROWDED, CALM = 0.25, 0.1
"""Cores too few for this process and the others, above which its threads stop spinning, and below which they resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadCount:
    """`number` threads, and why: `ThreadCount(number=1, reason="1 of 2 cores is free")`."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"computing with {self.number} thread{'s'[: self.number != 1]}: {self.reason}"


def prepare_waiting() -> None:
    """Sets the environment variables that bound spinning. Call it before torch is imported, which reads them once.

    A variable that the user has set is kept. Raises SleuthError if OMP_NUM_THREADS is no number.
    """
    requested_threads()
    os.environ.update(waiting_variables())


def waiting_variables() -> dict[str, str]:
    """The variables that bound spinning; none if the user has set one of that kind."""
    return {} if any(name in os.environ for name in SPIN_VARIABLES) else dict(SPIN)


def requested_threads() -> int | None:
    """The value of OMP_NUM_THREADS, of which the first of several counts, or None. Raises SleuthError if it is no
    positive whole number."""
    value = os.environ.get(NUMBER_VARIABLE, "").strip()
    if not value:
        return None
    first = value.split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and int(first)):
        raise SleuthError(f"{NUMBER_VARIABLE}={value}: not a number of threads; set 1 or more, or leave it unset")
    return int(first)


def usable_cores(machine: Path = Path("/sys")) -> int:
    """The cores that this process may run on, at least 1: of two hardware threads of a core one, and no more than the
    quota of its container. `machine` is the folder in which Linux describes itself."""
    affinity = getattr(os, "sched_getaffinity", None)
    names = affinity(0) if affinity else range(os.cpu_count() or 1)
    cores = {text_of(machine / f"devices/system/cpu/cpu{name}/topology/thread_siblings_list") or name for name in names}
    return max(1, math.floor(min(len(cores), _quota(machine / "fs/cgroup"))))


def _quota(groups: Path) -> float:
    """How many cores the control group of this process gets at most, by the files of its version 2 or 1."""
    quota, _, period = text_of(groups / "cpu.max").partition(" ")
    if not quota:
        quota, period = (text_of(groups / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


@cache
def free_cores() -> int:
    """How many cores other processes leave free, at least 1; measured once a process, in 0.2 to 0.6 seconds.

    One thread a core computes for a moment. C threads beside K busy processes get C * C / (C + K) cores between them,
    if the scheduler is fair, from which K follows.
    """
    cores, free = usable_cores(), 1
    for _ in range(PROBES):
        if free < cores:
            free = max(free, round(2 * cores - cores * cores / max(_cores_obtained(cores), 0.1)))
    return min(free, cores)


def choose_threads(weights: int, *, recorded: int | None = None) -> ThreadCount:
    """The number of threads for a model of so many weights, embeddings left out.

    In this order: OMP_NUM_THREADS; the number `recorded` when the run began, so that its results stay its own; the
    cores that are free, or fewer where the model is too small to share.
    """
    if (requested := requested_threads()) is not None:
        change = "" if recorded in (None, requested) else f", and the run began with {recorded}"
        return ThreadCount(number=requested, reason=f"{NUMBER_VARIABLE} is set{change}")
    if recorded is not None:
        return ThreadCount(number=recorded, reason="as when the run began")
    most = max(1, weights // WEIGHTS_PER_THREAD)
    if most == 1:
        return ThreadCount(number=1, reason=f"a model of {weights:,} weights is too small to share")
    free, cores = free_cores(), usable_cores()
    share = max(1, free // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return ThreadCount(number=min(share, most), reason=f"{free} of {cores} cores {'is' if free == 1 else 'are'} free")


def to_stderr(line: str) -> None:
    """Prints a line for whoever watches."""
    print(line, file=sys.stderr, flush=True)


class ProcessThreads:
    """The number of threads of this process: decided at its first model, or at the first one of a run, then kept.

    `chosen` is None before that.
    """

    def __init__(self) -> None:
        self.chosen: ThreadCount | None = None
        self._recorded: int | None = None
        self._say: Callable[[str], None] | None = None
        self._announced: ThreadCount | None = None
        self.watch = Watch()

    def begin(self, recorded: int | None, say: Callable[[str], None] | None = None) -> None:
        """A run begins, continues or is replayed, with the number of threads that it has `recorded`; `say` gets the
        line about the decision at once, without it `announce` prints the line."""
        self.chosen, self._recorded, self._say = None, recorded, say

    def fit(self, weights: int) -> ThreadCount:
        """Decides and applies the number to torch; later calls return the first decision.

        `weights` are the model's, embeddings left out.
        """
        import torch  # the environment must be prepared before torch is loaded

        if self.chosen is None:
            self.chosen = choose_threads(weights, recorded=self._recorded)
            torch.set_num_threads(self.chosen.number)
            if self._say is not None:
                self._say(str(self.chosen))
                self._announced = self.chosen
            self.watch.number = self.chosen.number
            if self.watch.ident is None and "OMP_WAIT_POLICY" not in os.environ:
                self.watch.start()
        return self.chosen

    def announce(self) -> None:
        """Prints the decision on stderr, once; for a command that computes without a run, after its last check."""
        if self.chosen is not None and self.chosen is not self._announced:
            to_stderr(str(self.chosen))
            self._announced = self.chosen


class Watch(threading.Thread):
    """Keeps the threads of torch's copy of GNU's OpenMP library from spinning while other processes use the cores.
    Numba has a copy of its own: its loops run without the threads that are `lent` to those meanwhile.

    The library spins for 100 iterations only as long as it manages more threads than there are cores (GOMP_SPINCOUNT in
    its manual). A second, idle team of threads brings that about, and changes no result. Other libraries are left to
    KMP_BLOCKTIME.
    """

    def __init__(self, number: int = 1) -> None:
        super().__init__(name="thread-watch", daemon=True)
        self.number = number
        self.crowded = False
        self.lent = 0
        self._idle_team: IdleTeam | None = None

    def run(self) -> None:
        """Looks twice a second for as long as the process lives; ends at once where /proc/stat is absent."""
        before = machine_time()
        while before is not None:
            time.sleep(WATCH_SECONDS)
            now = machine_time()
            if now is not None and now.total > before.total:
                self.follow(now.used_by_others(before))
            before = now

    def follow(self, others: float) -> None:
        """Stops or resumes spinning, where `others` is how many cores other processes use."""
        missing = others + self.number - (os.cpu_count() or 1)
        self.crowded = self.number > 1 and missing > (CALM if self.crowded else CROWDED)
        self.lent = min(math.ceil(missing), self.number - 1) if self.crowded else 0
        if self.crowded and self._idle_team is None:
            self._idle_team = IdleTeam(self.number)
        elif not self.crowded and self._idle_team is not None:
            self._idle_team.dissolve()
            self._idle_team = None


class IdleTeam:
    """A team of OpenMP threads that sleeps until it is dissolved."""

    def __init__(self, number: int) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(number,), name="idle-team", daemon=True)
        self._thread.start()

    def dissolve(self) -> None:
        """Ends its threads."""
        self._over.set()
        self._thread.join()

    def _hold(self, number: int) -> None:
        import torch

        torch.set_num_threads(number)
        torch.zeros(2**18).add_(1)  # large enough to be shared by threads, which makes them
        self._over.wait()


class MachineTime(NamedTuple):
    """Seconds of cores since the machine started: in `total` (idle ones too), `used` by all, and `own` of this
    process."""

    total: float
    used: float
    own: float

    def used_by_others(self, before: MachineTime) -> float:
        """How many cores other processes used since `before`, on average."""
        cores = os.cpu_count() or 1
        share = (self.used - before.used - (self.own - before.own)) / (self.total - before.total)
        return max(0.0, share * cores)


def machine_time() -> MachineTime | None:
    """The time of all cores so far, from /proc/stat; None on systems that lack it."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return None
    ticks = [int(word) for word in line.split()[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    second = os.sysconf("SC_CLK_TCK")
    return MachineTime(
        total=sum(ticks) / second, used=(sum(ticks) - ticks[3] - ticks[4]) / second, own=time.process_time()
    )


def _cores_obtained(threads: int) -> float:
    """How many cores so many computing threads get between them."""
    spent = [0.0] * threads
    until = time.perf_counter() + PROBE_SECONDS

    def compute(at: int) -> None:
        began = time.thread_time()
        while time.perf_counter() < until:
            hashlib.pbkdf2_hmac("sha256", b"probe", b"probe", 2_000)  # some milliseconds without the interpreter's lock
        spent[at] = time.thread_time() - began

    workers = [threading.Thread(target=compute, args=(at,)) for at in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(spent) / (time.perf_counter() - started)


PROCESS = ProcessThreads()
"""Of this process."""


Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """The result of `work`, in a thread that the end of the process does not wait for. It cannot be cancelled."""
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:  # any: it is raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(result)
