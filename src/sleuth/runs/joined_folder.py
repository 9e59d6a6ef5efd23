"""The run folder on ranks other than 0, which only read it."""

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
