"""Experiment trackers, which get the figures of `metrics.jsonl`. A tracker that fails is reported once and dropped, and
none sends anything over the network unless its own settings say so."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Protocol
from uuid import uuid4

from sleuth.host.atomic import write_text
from sleuth.types import SleuthError

PROJECT = "sleuth"
FOLDER = "trackers"
"""In the run folder; holds `tensorboard` and `wandb`."""
BEHIND = 1000
"""Steps that a tracker may be behind the run."""
NOT_INSTALLED = 'is not installed; pip install "sleuth[trackers]"'
FINISH_SECONDS = 10.0
"""Seconds that the end of a run waits for a tracker."""


class Tracker(Protocol):
    """Constructed from (folder, name of the run, its recipe); continues what is in the folder. `log` takes the row of a
    step, which may be a repeated one. Both may raise anything and take any time."""

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def curves(stage: str, figures: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row: `{"grpo/reward_mean": 0.31}`."""
    numbers = {name: value for name, value in figures.items() if isinstance(value, Real) and type(value) is not bool}
    return {f"{stage}/{name}": float(value) for name, value in numbers.items() if math.isfinite(value)}


# -- the trackers ----------------------------------------------------------------------------------------------------


class TensorBoard:
    """`tensorboard --logdir RUN/trackers`. After a resume, readers skip the steps that are repeated."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._begin = lambda step: SummaryWriter(str(folder / "tensorboard"), purge_step=step)
        self._config = json.dumps({"name": run_name} | dict(config), indent=2, default=str)
        self._writer: SummaryWriter | None = None

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = self._begin(step)
            self._writer.add_text("recipe", "\n".join(f"    {line}" for line in self._config.splitlines()), 0)
        for name, value in curves(stage, figures).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """`wandb sync RUN/trackers/wandb/offline-run-*`, unless WANDB_MODE says otherwise. Each session of a run is a file
    of the same run id, which `wandb sync` joins; the figure `step` is the x axis, so steps may repeat."""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it reports errors to its makers even in offline mode
        os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "wandb" / "cache"))
        import wandb  # pyright: ignore[reportMissingImports]

        run_id = folder / "wandb_run_id"
        if not run_id.exists():
            write_text(run_id, uuid4().hex[:8] + "\n")
        mode: Any = os.environ.get("WANDB_MODE") or "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_name,
            id=run_id.read_text(encoding="utf-8").strip(),
            resume="allow",
            reinit="create_new",
            mode=mode,
            dir=folder,
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        self._run.log({"step": step} | curves(stage, figures))

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
}
"""By their name in a recipe's `trackers`."""


# -- the trackers of a run -----------------------------------------------------------------------------------------


def require_trackers(names: Sequence[str]) -> None:
    """Raises SleuthError for a tracker that is not installed; imports none."""
    for name in names:
        package = find_spec(name)
        if package is None or package.origin is None:  # a folder `wandb`, as its runs make one, is no package
            raise SleuthError(f"{name} {NOT_INSTALLED}")


def open_trackers(
    names: Sequence[str], run_folder: Path, run_name: str, config: Mapping[str, Any], say: Callable[[str], None]
) -> Trackers:
    """The trackers of a run, each continuing its earlier session.

    Raises SleuthError for one that is not installed or cannot be opened.
    """
    folder, trackers, name = run_folder / FOLDER, Trackers(say), ""
    try:
        for name in dict.fromkeys(names):
            if name not in TRACKERS:
                raise SleuthError(f"trackers: there is no {name!r}; there are {', '.join(TRACKERS)}")
            folder.mkdir(parents=True, exist_ok=True)
            trackers.add(name, TRACKERS[name](folder, run_name, config))
    except Exception as error:  # a tracker may raise anything
        trackers.close()
        if isinstance(error, SleuthError):
            raise
        if isinstance(error, ImportError):
            raise SleuthError(f"trackers: {name} {NOT_INSTALLED}") from None
        raise SleuthError(
            f"trackers: {name} cannot be opened: {_one_line(error)}; repair it or remove it from trackers"
        ) from error
    return trackers


class Trackers:
    """All trackers of a run; never raises and never waits. Call `close` at the end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.feeds: list[_Feed] = []

    def add(self, name: str, tracker: Tracker) -> None:
        """Sends what follows to one more tracker."""
        self.feeds.append(_Feed(name, tracker))

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Sends the row of a step to each tracker."""
        for feed in self.feeds:
            feed.put((stage, step, dict(figures)))
        self._drop_failed()

    def close(self) -> None:
        """Waits up to FINISH_SECONDS for each tracker to finish."""
        for feed in self.feeds:
            feed.put(None)
        for feed in self.feeds:
            feed.join(FINISH_SECONDS)
            if feed.is_alive():
                feed.failure = feed.failure or f"did not finish in {FINISH_SECONDS:g} seconds"
        self._drop_failed()
        self.feeds.clear()

    def _drop_failed(self) -> None:
        for feed in self.feeds:
            if feed.failure is not None:
                self._say(f"tracker {feed.name}: {feed.failure}; dropped; metrics.jsonl has every figure")
        self.feeds = [feed for feed in self.feeds if feed.failure is None]


class _Feed(Thread):
    """The thread of a tracker, where it may raise or hang. `failure` is the reason why it was dropped."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: str | None = None
        self._tracker = tracker
        self._rows: Queue[tuple[str, int, dict[str, Any]] | None] = Queue(BEHIND)
        self.start()

    def put(self, row: tuple[str, int, dict[str, Any]] | None) -> None:
        """Queues a row, or None for the end."""
        try:
            self._rows.put_nowait(row)
        except Full:
            self.failure = self.failure or f"is {BEHIND} steps behind"

    def run(self) -> None:
        """Logs the rows until the end."""
        try:
            for row in iter(self._rows.get, None):
                self._tracker.log(*row)
            self._tracker.close()
        except BaseException as error:  # a package may even call sys.exit
            self.failure = _one_line(error)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SleuthError) else f"{type(error).__name__}: {text}"
