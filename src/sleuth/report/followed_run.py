"""A run folder that another process writes. Each look reads what is new, and nothing that is wrong there raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sleuth.metrics.intervals import Measured
from sleuth.report.figures import FigureRow, SetRow, arms_of, figure_rows, measured_of, set_rows
from sleuth.report.rollouts_shown import rollouts_shown, step_of
from sleuth.report.run_files import (
    RunFiles,
    in_stage_order,
    read_object,
    read_recipe,
    read_stage_evaluation,
    stale_line,
)
from sleuth.report.run_state import RunState, RunTraces, state_of
from sleuth.report.summary import run_headline
from sleuth.report.transcripts import TextPool, read_tokenizer
from sleuth.runs.checkpoints import latest_checkpoint
from sleuth.runs.checkpoints import step_of as saved_step
from sleuth.runs.metrics import MetricsTail
from sleuth.runs.run_folder import is_held
from sleuth.types import SleuthError

MAX_FILE_BYTES = 256 * 2**20
"""A larger recipe, manifest or evaluation is not read."""

Stamp = tuple[tuple[str, int, int], ...]
"""(path, time of change, bytes) of files: equal stamps, equal contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationsShown:
    """The figures of a run's evaluations, without their records: `measured` by evaluation and figure, and what the
    report computes from base and trained."""

    models: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    figures: tuple[FigureRow, ...] = ()
    sets: tuple[SetRow, ...] = ()
    headline: str | None = None


class FollowedRun:
    """`run.look()` reads on; then `state`, `rows`, `evaluations` and `steps` are those of this moment, and `problems`
    says in a line each what could not be read. If the folder disappears, they stay as they were."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.recipe: dict[str, Any] = {}
        self.manifest: dict[str, Any] = {}
        self.evaluations = EvaluationsShown()
        self.files: dict[int, Path] = {}
        self.state = RunState(kind="waiting", sentence="waiting")
        self.problems: list[str] = []
        self.changes = 0
        """How often the rows changed."""
        self._tail = MetricsTail(folder / "metrics.jsonl")
        self._known: dict[str, tuple[Stamp, list[str]]] = {}
        self._ended: list[str] = []
        self._tokenizer_of: Path | None = None
        self._newest_tokenizer: Tokenizer | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics so far."""
        return self._tail.rows

    @property
    def steps(self) -> list[int]:
        """The steps whose episodes are stored."""
        return list(self.files)

    def look(self) -> None:
        """Reads what is new in the folder."""
        self.problems = []
        if not self.folder.is_dir():
            self.state = RunState(kind="gone", sentence="the folder is gone; this is what it held")
            return
        self._read("recipe", [self.folder / "recipe.toml"], self._read_recipe)
        self._read("manifest", [self.folder / "manifest.json"], self._read_manifest)
        self._read("evaluations", sorted((self.folder / "eval").glob("*.json")), self._read_evaluations)
        self._read("rollouts", [self.folder / "rollouts"], self._list_rollouts)
        try:
            self.changes += self._tail.look()
        except OSError as error:
            self.problems.append(f"metrics.jsonl: {error.strerror}")
        if self._tail.damaged:
            self.problems.append(f"metrics.jsonl: left out what is no row ({self._tail.damaged} lines)")
        self.state = state_of(self._traces())

    def rollouts(self, step: int) -> dict[str, Any]:
        """`{"step", "of", "groups", "texts"}` of a step's first groups. Raises SleuthError if they cannot be read."""
        if step not in self.files:
            raise SleuthError(f"{self.name} holds no rollouts of step {step}")
        pool = TextPool()
        try:
            shown = rollouts_shown([self.files[step]], pool, self._tokenizer())
        except OSError as error:  # pruned or still being copied
            raise SleuthError(f"{self.files[step].name} cannot be read: {str(error).splitlines()[0]}") from None
        if not shown:
            raise SleuthError(f"{self.files[step].name} holds no episodes")
        return shown[0] | {"texts": pool.texts}

    def _read(self, what: str, files: list[Path], read: Callable[[list[Path]], None]) -> None:
        """Calls `read` if the files have changed. What it raises becomes problems, until they change again."""
        stamp = _stamp(files)
        if self._known.get(what, (None,))[0] != stamp:
            before, self.problems = self.problems, []
            for path, _, size in stamp:
                if size > MAX_FILE_BYTES:
                    self.problems.append(f"{Path(path).name}: {size:,} bytes are too many to show")
            try:
                read([Path(path) for path, _, size in stamp if size <= MAX_FILE_BYTES])
            except SleuthError as error:
                self.problems.append(_line(error))
            except OSError as error:  # removed since it was listed
                self.problems.append(f"{what}: {error.strerror}")
            except (AttributeError, KeyError, TypeError, ValueError) as error:  # JSON or TOML of another shape
                self.problems.append(f"{what}: not as Sleuth writes it ({type(error).__name__}: {error})")
            self._known[what] = stamp, self.problems
            self.problems = before
        self.problems += self._known[what][1]

    def _read_recipe(self, files: list[Path]) -> None:
        recipe = read_recipe(files[0])[0] if files else {}
        for stage in recipe.get("stage", ()):
            if any(type(stage.get(key, 0)) is not int for key in ("steps", "stop_after")):
                raise SleuthError("recipe.toml: a stage has no whole number of steps")
        self.recipe = recipe

    def _read_manifest(self, files: list[Path]) -> None:
        manifest = read_object(files[0]) if files else {}
        self._ended = [name for name, cost in manifest.get("costs", {}).items() if "total" in cost["seconds"]]
        self.manifest = manifest

    def _read_evaluations(self, files: list[Path]) -> None:
        """Keeps the figures; the records are as large as the files."""
        evaluations = {}
        for file in in_stage_order(self.recipe, files):
            try:
                evaluation = read_stage_evaluation(self.recipe, file)
            except SleuthError as error:
                self.problems.append(_line(error))
                continue
            if (line := stale_line(file, evaluation, self.recipe, self.manifest)) is None:
                evaluations[file.stem] = evaluation
            else:
                self.problems.append(line)
        run = RunFiles(
            folder=self.folder,
            recipe=self.recipe,
            recipe_text="",
            manifest={},
            metrics=[],
            evaluations=evaluations,
            rollouts=[],
        )
        self.evaluations = EvaluationsShown(
            models={name: str(one.get("model", "")) for name, one in evaluations.items()},
            measured={
                name: {key: found for key, value in one.items() if (found := measured_of(value)) is not None}
                for name, one in evaluations.items()
            },
            arms=tuple(arms_of(evaluations)),
            figures=tuple(figure_rows(evaluations)),
            sets=tuple(set_rows(evaluations)),
            headline=run_headline(run),
        )

    def _list_rollouts(self, files: list[Path]) -> None:
        found = [file for folder in files for file in folder.glob("*.parquet") if any(map(str.isdigit, file.stem))]
        self.files = dict(sorted((step_of(file), file) for file in found))

    def _tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the newest checkpoint; None while there is none that can be read."""
        newest = latest_checkpoint(self.folder / "checkpoints")
        if newest != self._tokenizer_of:
            try:
                self._newest_tokenizer = read_tokenizer(self.folder)
            except Exception:  # the library's own, for a file that is being removed
                return None
            self._tokenizer_of = newest
        return self._newest_tokenizer

    def _traces(self) -> RunTraces:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            rows.setdefault(row["stage"], []).append(row)
        newest = latest_checkpoint(self.folder / "checkpoints")
        return RunTraces(
            stages=self.recipe.get("stage", ()),
            rows=rows,
            evaluated=self.evaluations.models,
            ended=self._ended,
            saved=saved_step(newest) if newest else 0,
            held=is_held(self.folder),
            age=max(0.0, time.time() - self._last_change()),
        )

    def _last_change(self) -> float:
        names = ("metrics.jsonl", "recipe.toml", "manifest.json", "eval", "rollouts", "checkpoints")
        return max((at / 1e9 for _, at, _ in _stamp([self.folder / name for name in names])), default=time.time())


def _line(error: SleuthError) -> str:
    return str(error).replace("\n", " ")


def _stamp(paths: list[Path]) -> Stamp:
    """The stamp of those that exist."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:  # it does not exist, or not any more
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)
