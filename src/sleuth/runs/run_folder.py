"""The folder of a run: its files, its lock, and what resuming it needs."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sleuth.host.atomic import PARTIAL, write_text
from sleuth.host.disk import Shortages, is_full, lack
from sleuth.host.memory import peak_memory
from sleuth.ranks import Ranks
from sleuth.recipe import Recipe, dump_toml, load_recipe
from sleuth.runs.chain import CHAIN, begin_chain, recorded, require_regular, require_unbroken, settle
from sleuth.runs.eval_file import set_aside_damaged
from sleuth.runs.manifest import Manifest, identity
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.progress import print_line
from sleuth.runs.trackers import Trackers, open_trackers
from sleuth.types import SleuthError, TransientError

REWARD_KEY = r"stage\.\d+\.reward\."
STAGE_KEY = r"stage\.\d+\.(?!kind$|name$)"
LAUNCHER = "ray"
"""A launcher's temporary folder, which may exist before the run begins."""
FORWARDED_SIGNAL = f"{LAUNCHER}/signal"
"""The number of a signal that the launcher has received for the ranks."""
RESULT_FOLDERS = ("rollouts", "eval", "checkpoints")
LOCKS = Path("/proc/locks")
"""Every lock that a process of this machine holds, on Linux."""
START_FILES = ("log.txt", "metrics.jsonl", "manifest.json", "recipe.toml", CHAIN, "lock")
"""What a run writes before its first result, in the order in which a failed start is removed."""
MAX_WAITING = 64
"""Writes that may wait. With more, the run would go on without saving anything."""


class Backlog:
    """Performs writes in order. A write that finds no room waits, and is retried before the next one.

    `say` gets a line when the disk becomes full and when there is room again. Each write must be atomic.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._reported_full = False

    def write(self, what: str, action: Callable[[], object]) -> None:
        """Calls `action`, or keeps it until there is room. `what` names it: "metrics of step 12".

        Raises SleuthError if more than MAX_WAITING writes wait: the run can resume from its last checkpoint.
        """
        self._waiting.append((what, action))
        if not self.flush() and len(self._waiting) > MAX_WAITING:
            raise SleuthError(
                f"the disk has been full for long: {len(self._waiting)} writes wait, the first of them "
                f"{self._waiting[0][0]}; make room and run the same command again: it continues from the last save"
            )

    def flush(self) -> bool:
        """Retries the waiting writes; returns whether all succeeded."""
        while self._waiting:
            what, action = self._waiting[0]
            try:
                action()
            except OSError as error:
                if not is_full(error):
                    raise
                self._report_full(f"{lack(error)} for {what}: it waits, and the run goes on")
                return False
            self._waiting.popleft()
        if self._reported_full:
            self._reported_full = False
            self.say("there is room on the disk again: all waiting files are written")
        return True

    def _report_full(self, line: str) -> None:
        if not self._reported_full:
            self._reported_full = True
            self.say(line)


class RunFolder:
    """An open run folder; one process at a time may hold it.

    `recipe.toml` (resolved), `manifest.json`, `metrics.jsonl`, `chain.jsonl`, `log.txt`, where a model judges
    `verdicts.sqlite`, and the folders `rollouts`, `eval` and `checkpoints`, and `out_of_memory` if a rank ran out of
    memory. Use it as a context manager, or `close` it. The folder belongs to a recipe once it holds a result: what a
    start without one has written is removed when the start fails, and replaced by another recipe if it was killed.
    """

    def __init__(
        self, path: Path, recipe: Recipe, lock: RunLock | None = None, accepted_reward: str | None = None
    ) -> None:
        self.path = path
        self.recipe = recipe
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self.manifest = Manifest(path / "manifest.json")
        self.rollouts = path / "rollouts"
        self.eval = path / "eval"
        self.checkpoints = path / "checkpoints"
        self.verdicts = path / "verdicts.sqlite"
        self.shortages = Shortages(path / "out_of_memory")
        self.accepted_reward = accepted_reward
        self.backlog = Backlog(self.say)
        self._console: Callable[[str], None] = print_line
        self.trackers = Trackers(self.say)
        self._lock = lock
        self._made: list[Path] = []  # folders that did not exist before

    @classmethod
    def open(cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False) -> Self:
        """Creates the folder, or continues the run in it if its recipe is the same. `stop_after` may always differ, the
        rewards with `accepted_reward`, and any key of a stage with `changed`.

        Raises SleuthError if the folder holds another run or other files, or if another process is writing it.
        """
        _require_run_or_empty(path)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, recipe, RunLock(path), accepted_reward)
        run._made = missing
        try:
            _check_recipe(path, recipe, free=_free_keys(accepted_reward, changed))
            run._begin()
        except BaseException:
            run.abandon()
            raise
        return run

    @classmethod
    def require(cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False) -> None:
        """Raises SleuthError if `open` would; writes nothing."""
        cls.require_same(path, recipe, accepted_reward=accepted_reward, changed=changed)
        if (path / "lock").exists():
            RunLock(path).release()

    @classmethod
    def require_same(
        cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False
    ) -> None:
        """Raises SleuthError if the folder holds another run or other files. Only reads, so several processes may call
        it at once."""
        _require_run_or_empty(path)
        _check_recipe(path, recipe, free=_free_keys(accepted_reward, changed))

    @classmethod
    def look(cls, path: Path) -> Self:
        """Opens a run to read it, even while another process writes it."""
        if not (path / "recipe.toml").exists():
            raise SleuthError(f"{path}: holds no run; give the folder of a run, for example runs/demo")
        require_regular(path)
        return cls(path, load_recipe(path / "recipe.toml"))

    def say(self, line: str) -> None:
        """Prints a line and appends it to `log.txt` with the time. A log that cannot be written ends no run."""
        self._console(line)
        with suppress(OSError), open(self.path / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {line}\n")

    @contextmanager
    def saying(self, console: Callable[[str], None]) -> Iterator[None]:
        """Sends what `say` prints through `console`, so that a progress bar stays below it."""
        self._console, before = console, self._console
        try:
            yield
        finally:
            self._console = before

    def write_metrics(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Appends a row to `metrics.jsonl`; on a full disk the row waits."""
        self.backlog.write(f"the figures of step {step}", lambda: self.metrics.append(stage, step, figures))
        self.trackers.log(stage, step, figures)

    def amend_metrics(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Adds figures to the row of a step that is written already, and sends them to the trackers."""
        self.backlog.write(f"more figures of step {step}", lambda: self.metrics.amend(stage, step, figures))
        self.trackers.log(stage, step, figures)

    @contextmanager
    def costing(self, stage: str, what: str) -> Iterator[None]:
        """Adds to the manifest the seconds that the block took, under `what`, and the peak memory of the process."""
        started = time.monotonic()
        yield
        seconds, host, gpu = time.monotonic() - started, *peak_memory()
        self.backlog.write(
            f"what stage {stage} cost",
            lambda: self.manifest.add_cost(stage, host_memory=host, gpu_memory=gpu, **{what: seconds}),
        )

    def require_written(self) -> None:
        """Raises SleuthError if a write still waits for room on the disk."""
        if not self.backlog.flush():
            raise SleuthError(self.full_disk())

    def full_disk(self) -> str:
        """The error message of a run that ends while writes wait for room on the disk."""
        return (
            f"{self.path}: the disk is full or allows no larger file, and some files could not be written; make room "
            "and run the same command again: it continues from the last checkpoint"
        )

    def close(self) -> None:
        """Releases the folder for other processes."""
        self.trackers.close()
        if self._lock is not None:
            self._lock.release()

    def abandon(self) -> None:
        """Closes the folder after an error, and removes it if it holds nothing but what a start writes."""
        self.trackers.close()
        if self._lock is None:
            return
        with suppress(OSError):  # the error that ended the run is the one to report
            if not _holds_results(self.path):
                self._remove_start()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _remove_start(self) -> None:
        if any(file.name not in (*START_FILES, *RESULT_FOLDERS) for file in self.path.iterdir()):
            return  # verdicts that were paid for, or files of a tracker
        for name in RESULT_FOLDERS:
            with suppress(FileNotFoundError):
                (self.path / name).rmdir()
        for name in START_FILES:
            (self.path / name).unlink(missing_ok=True)
        for folder in self._made:
            folder.rmdir()

    def _begin(self) -> None:
        if not _holds_results(self.path) and not _is_run_of(self.path, self.recipe):
            self.manifest.path.unlink(missing_ok=True)
            self.shortages.forget()
        self._check_chain()
        if self.metrics.path.exists() and not self.manifest.path.exists():
            self.say(f"{self.manifest.path} is missing: versions, costs and roll-backs so far are not known any more")
        with recorded(self.path / "recipe.toml"):
            write_text(self.path / "recipe.toml", dump_toml(self.recipe))
        self.manifest.begin(self.recipe)
        if not (self.path / CHAIN).exists():
            begin_chain(self.path, self.manifest.run or "")
        self.metrics.repair()
        for folder in (self.rollouts, self.eval, self.checkpoints):
            folder.mkdir(exist_ok=True)
        set_aside_damaged(self.eval, self.say)
        names, config = self.recipe.trackers, self.recipe.model_dump(mode="json")
        self.trackers = open_trackers(names, self.path, self.recipe.name, config, self.say)

    def _check_chain(self) -> None:
        """Raises SleuthError if a file is not what the run wrote; prints what is lost, or that there is no chain."""
        if not _holds_results(self.path):
            (self.path / CHAIN).unlink(missing_ok=True)
        elif (self.path / CHAIN).exists():
            findings = require_unbroken(self.path)
            if (line := findings.line(self.path)) is not None:
                self.say(f"{line}; the run goes on with what is there")
            settle(self.path, findings)
        else:
            self.say(f"{self.path} has no {CHAIN}: its files are accepted as they are, and changes noticed from now on")


def _holds_results(path: Path) -> bool:
    """Whether a run has stored a row, an episode, an evaluation or a checkpoint."""
    metrics = path / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:
        return True
    return any(any((path / name).iterdir()) for name in RESULT_FOLDERS if (path / name).is_dir())


def _is_run_of(path: Path, recipe: Recipe) -> bool:
    """Whether the stored recipe is this one."""
    try:
        return identity(load_recipe(path / "recipe.toml")) == identity(recipe)
    except SleuthError:  # there is none, or it is damaged
        return False


def _require_run_or_empty(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise SleuthError(f"{path}: is a file; a run needs a folder")
    require_regular(path)
    if not path.exists() or (path / "recipe.toml").exists():
        return
    if foreign := foreign_files(path):
        raise SleuthError(f"{path}: holds no run but {foreign[0]!r}; choose a new or an empty folder with --run")


def foreign_files(path: Path) -> list[str]:
    """The names of files in a folder that no run has begun in, other than those of a run that is about to begin."""
    ours = ("lock", CHAIN, CHAIN + PARTIAL, "recipe.toml" + PARTIAL, LAUNCHER)
    return sorted(file.name for file in path.iterdir() if file.name not in ours)


def _free_keys(accepted_reward: str | None, changed: bool) -> str | None:
    """A pattern of the keys that may differ from the stored recipe; None if all must be equal."""
    return STAGE_KEY if changed else REWARD_KEY if accepted_reward else None


def _check_recipe(path: Path, recipe: Recipe, *, free: str | None) -> None:
    """Raises SleuthError if a key that does not match `free` differs from the stored recipe of a run with results."""
    if not (path / "recipe.toml").exists() or not _holds_results(path):
        return
    stored, given = identity(load_recipe(path / "recipe.toml")), identity(recipe)
    for key in stored | given:
        if stored.get(key) != given.get(key) and not (free and re.match(free, key)):
            raise SleuthError(
                f"{path}: holds another run: {key} is {_shown(stored.get(key))} there, {_shown(given.get(key))} here; "
                "choose another folder with --run"
            )


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)


class RunLock:
    """Held from construction to `release`. The kernel releases it when the process dies, so it is never stale."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's whole life
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip() or "just started"
            self._file.close()
            raise TransientError(
                f"{folder}: a process ({owner}) is writing this run; let it end, or choose another folder with --run"
            ) from None
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()} on {platform.node()}\n")
        self._file.flush()

    def release(self) -> None:
        """Lets another process write the run."""
        self._file.close()


def is_held(folder: Path) -> bool | None:
    """Whether a process holds the lock of a run. None if it cannot be known here: another machine wrote the lock, or
    the system does not list its locks. Takes no lock itself, so it never keeps a run from beginning."""
    try:
        owner = re.fullmatch(r"pid (\d+) on (.+)\n", (folder / "lock").read_text(encoding="utf-8", errors="replace"))
        inode = (folder / "lock").stat().st_ino
        held = LOCKS.read_text(encoding="utf-8")
    except OSError:  # there is no lock, or no list of locks
        return None
    if owner is None or owner[2] != platform.node():
        return None
    return re.search(rf"FLOCK .* {owner[1]} \w+:\w+:{inode} ", held) is not None


def open_on(
    ranks: Ranks, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False
) -> RunFolder:
    """`RunFolder.open` on rank 0; the other ranks wait for it and get a folder that only reads."""
    opened: list[RunFolder] = []
    ranks.broadcast(
        lambda: opened.append(RunFolder.open(path, recipe, accepted_reward=accepted_reward, changed=changed))
    )
    return opened[0] if opened else JoinedFolder(path, recipe, accepted_reward=accepted_reward)


class JoinedFolder(RunFolder):
    """A run folder that is read only: rank 0 prints and writes."""

    def __init__(self, path: Path, recipe: Recipe, *, accepted_reward: str | None = None) -> None:
        super().__init__(path, recipe, accepted_reward=accepted_reward)
        self.metrics = _ReadMetrics(self.metrics.path)
        self.manifest = _ReadManifest(self.manifest.path)
        self.backlog = _NoBacklog(self.say)

    def say(self, line: str) -> None:
        """Does nothing: rank 0 prints."""

    def write_metrics(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Does nothing: rank 0 writes."""

    @contextmanager
    def costing(self, stage: str, what: str) -> Iterator[None]:
        """Measures nothing: the manifest has the costs of rank 0."""
        yield


class _ReadMetrics(MetricsFile):
    def _write(self, rows: list[dict[str, Any]]) -> None: ...


class _ReadManifest(Manifest):
    def _write(self, manifest: dict[str, Any]) -> None: ...


class _NoBacklog(Backlog):
    def write(self, what: str, action: Callable[[], object]) -> None: ...
