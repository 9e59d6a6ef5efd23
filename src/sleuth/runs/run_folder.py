"""The folder of a run: everything that it leaves behind, and all that is needed to go on."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sleuth.recipe import Recipe, dump_toml, load_recipe
from sleuth.runs.atomic import PARTIAL, write_text
from sleuth.runs.backlog import Backlog
from sleuth.runs.disk import Shortages
from sleuth.runs.manifest import Manifest, identity
from sleuth.runs.memory import peak_memory
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.trackers import Trackers, open_trackers
from sleuth.types import SleuthError, TransientError

REWARD_KEY = r"stage\.\d+\.reward\."
STAGE_KEY = r"stage\.\d+\.(?!kind$|name$)"
LAUNCHER = "ray"
"""The folder in which a launcher may note things before the run begins, and which it removes."""


class RunFolder:
    """An open run folder; one process at a time may hold it.

    `recipe.toml` (resolved), `manifest.json`, `metrics.jsonl`, `log.txt`, where a model judges `verdicts.sqlite`, and
    the folders `rollouts`, `eval` and `checkpoints`, and `out_of_memory` where a rank was. Use it as a context manager,
    or `close` it.
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
        self._console: Callable[[str], None] = _to_stderr
        self.trackers = Trackers(self.say)
        self._lock = lock

    @classmethod
    def open(cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False) -> Self:
        """Make the folder, or continue it if it holds this recipe (only `stop_after` may differ; with `accepted_reward`
        the rewards too, and all that its stages are told where the recipe is said to be `changed`).

        Raises `SleuthError` where the folder holds another recipe or other things, or another process writes it.
        """
        _check_place(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        try:
            _check_recipe(path, recipe, free=_free(accepted_reward, changed))
            run = cls(path, recipe, lock, accepted_reward)
            run._begin()
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def require(cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False) -> None:
        """Raises SleuthError where `open` would, and makes nothing."""
        cls.require_same(path, recipe, accepted_reward=accepted_reward, changed=changed)
        if (path / "lock").exists():
            RunLock(path).release()

    @classmethod
    def require_same(
        cls, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False
    ) -> None:
        """Raises SleuthError where the folder holds another recipe or other things. Only reads, so that several
        processes may ask at once."""
        _check_place(path)
        _check_recipe(path, recipe, free=_free(accepted_reward, changed))

    @classmethod
    def look(cls, path: Path) -> Self:
        """A folder that holds a run, to read it, also while another process writes it."""
        if not (path / "recipe.toml").exists():
            raise SleuthError(f"{path}: holds no run")
        return cls(path, load_recipe(path / "recipe.toml"))

    def say(self, line: str) -> None:
        """A line for whoever watches, and for `log.txt`, with the time. A log that cannot be written ends no run."""
        self._console(line)
        with suppress(OSError), open(self.path / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {line}\n")

    @contextmanager
    def saying(self, console: Callable[[str], None]) -> Iterator[None]:
        """What `say` prints goes through `console`: a progress bar keeps its place below."""
        self._console, before = console, self._console
        try:
            yield
        finally:
            self._console = before

    def write_metrics(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """A row of `metrics.jsonl`; on a full disk it waits."""
        self.backlog.write(f"the figures of step {step}", lambda: self.metrics.append(stage, step, figures))
        self.trackers.log(stage, step, figures)

    @contextmanager
    def costing(self, stage: str, what: str) -> Iterator[None]:
        """Adds to the manifest how long `what` took of a stage, and how much memory the process has held by its end."""
        started = time.monotonic()
        yield
        seconds, host, gpu = time.monotonic() - started, *peak_memory()
        self.backlog.write(
            f"what stage {stage} cost",
            lambda: self.manifest.add_cost(stage, host_memory=host, gpu_memory=gpu, **{what: seconds}),
        )

    def require_written(self) -> None:
        """Raises SleuthError where something still waits for room on the disk."""
        if not self.backlog.flush():
            raise SleuthError(self.full_disk())

    def full_disk(self) -> str:
        """What to say where a run ends without room for all that it made."""
        return (
            f"{self.path}: the disk is full, and not all of the run could be written; make room and run the same "
            "command again: it goes on from the last checkpoint"
        )

    def close(self) -> None:
        """Let another process continue the run."""
        self.trackers.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        write_text(self.path / "recipe.toml", dump_toml(self.recipe))
        self.manifest.begin(self.recipe)
        self.metrics.mend()
        for folder in (self.rollouts, self.eval, self.checkpoints):
            folder.mkdir(exist_ok=True)
        names, config = self.recipe.trackers, self.recipe.model_dump(mode="json")
        self.trackers = open_trackers(names, self.path, self.recipe.name, config, self.say)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise SleuthError(f"{path}: is a file; a run needs a folder")
    if not path.exists() or (path / "recipe.toml").exists():
        return
    ours = ("lock", "recipe.toml" + PARTIAL, LAUNCHER)
    foreign = sorted(place.name for place in path.iterdir() if place.name not in ours)
    if foreign:
        raise SleuthError(f"{path}: holds no run but {foreign[0]!r}; choose a new or an empty folder with --run")


def _free(accepted_reward: str | None, changed: bool) -> str | None:
    """Which keys may differ from those of the run that is there."""
    return STAGE_KEY if changed else REWARD_KEY if accepted_reward else None


def _check_recipe(path: Path, recipe: Recipe, *, free: str | None) -> None:
    """Keys that match `free` may differ."""
    if not (path / "recipe.toml").exists():
        return
    there, here = identity(load_recipe(path / "recipe.toml")), identity(recipe)
    for key in there | here:
        if there.get(key) != here.get(key) and not (free and re.match(free, key)):
            raise SleuthError(
                f"{path}: holds another run: {key} is {_shown(there.get(key))} there and {_shown(here.get(key))} here; "
                "choose another folder with --run"
            )


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)


class RunLock:
    """Held from construction to `release`. The kernel frees it when its process dies, so that it is never stale."""

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
        self._file.write(f"pid {os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let another process write the run."""
        self._file.close()
