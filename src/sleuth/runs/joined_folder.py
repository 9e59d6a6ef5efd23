"""A run folder as those ranks see it that do not write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sleuth.ranks import Ranks
from sleuth.recipe import Recipe
from sleuth.runs.backlog import Backlog
from sleuth.runs.manifest import Manifest
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.run_folder import RunFolder


def open_on(
    ranks: Ranks, path: Path, recipe: Recipe, *, accepted_reward: str | None = None, changed: bool = False
) -> RunFolder:
    """As `RunFolder.open`, by the first rank; the others join it when it is open."""
    opened: list[RunFolder] = []
    ranks.broadcast(
        lambda: opened.append(RunFolder.open(path, recipe, accepted_reward=accepted_reward, changed=changed))
    )
    return opened[0] if opened else JoinedFolder(path, recipe, accepted_reward=accepted_reward)


class JoinedFolder(RunFolder):
    """To read, by processes that say and write nothing: the first rank does."""

    def __init__(self, path: Path, recipe: Recipe, *, accepted_reward: str | None = None) -> None:
        super().__init__(path, recipe, accepted_reward=accepted_reward)
        self.metrics = _ReadMetrics(self.metrics.path)
        self.manifest = _ReadManifest(self.manifest.path)
        self.backlog = _NoBacklog(self.say)

    def say(self, line: str) -> None:
        """The first rank says it."""

    def write_metrics(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """The first rank writes them."""

    @contextmanager
    def costing(self, stage: str, what: str) -> Iterator[None]:
        """What a stage costs is what it costs the first rank."""
        yield


class _ReadMetrics(MetricsFile):
    def _write(self, rows: list[dict[str, Any]]) -> None: ...


class _ReadManifest(Manifest):
    def _write(self, manifest: dict[str, Any]) -> None: ...


class _NoBacklog(Backlog):
    def write(self, what: str, action: Callable[[], object]) -> None: ...
