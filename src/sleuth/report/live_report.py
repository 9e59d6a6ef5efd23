"""The report of a run that another process writes: drawn again when its files change, whatever state they are in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import Tokenizer

from sleuth.report.arms import MAX_ARMS, distinct_names, require_distinct
from sleuth.report.curves import HEIGHT, WIDTH, Row, stages_of
from sleuth.report.page import environment, evaluation_values, overlap, run_values, without_surrogates
from sleuth.report.rollouts_shown import questions_played, rollouts_shown, step_of
from sleuth.report.run_files import (
    RunFiles,
    in_stage_order,
    read_object,
    read_recipe,
    read_stage_evaluation,
    stale_line,
)
from sleuth.report.run_state import RunState, RunTraces, state_of
from sleuth.report.transcripts import TextPool, read_tokenizer
from sleuth.runs.alarms import DETECTORS
from sleuth.runs.checkpoints import latest_checkpoint
from sleuth.runs.checkpoints import step_of as saved_step
from sleuth.runs.metrics import MetricsTail
from sleuth.runs.run_folder import foreign_files, is_held
from sleuth.types import SleuthError

SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "questions.js", "curves.js", "watch.js")
MAX_FILE_BYTES = 256 * 2**20
"""A larger recipe, manifest or evaluation is not read."""
MAX_ALARMS = 20
MISSHAPEN = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading a file of another shape than Sleuth writes can raise."""
EMPTY: dict[str, Any] = {"evaluations": {}, "metrics": [], "manifest": {}, "recipe": {}}
"""Parts of a run that the page can be drawn without."""

Stamp = tuple[tuple[str, int, int], ...]
"""(path, time of change, bytes) of files: equal stamps, equal contents."""


def live_reports(folders: Sequence[Path]) -> list[LiveReport]:
    """The reports of these folders, which may be empty still. Raises SleuthError for what is no folder of a run, for
    one that is given twice, and for too many."""
    require_distinct(folders)
    for folder in folders:
        _require_run_or_empty(folder)
    if len(folders) > MAX_ARMS:
        raise SleuthError(f"{len(folders)} runs are too many to read: give at most {MAX_ARMS}")
    names = distinct_names(list(map(str, folders)))
    return [LiveReport(folder, name) for folder, name in zip(folders, names, strict=True)]


def _require_run_or_empty(folder: Path) -> None:
    if not folder.exists():
        raise SleuthError(f"{folder}: no such folder; give the folder of a run, for example runs/demo")
    if not folder.is_dir():
        raise SleuthError(f"{folder}: is a file; give the folder of a run, for example runs/demo")
    if not (folder / "recipe.toml").exists() and (foreign := foreign_files(folder)):
        raise SleuthError(
            f"{folder}: not a run folder, it holds {foreign[0]!r} and no recipe.toml; give a folder that "
            "`sleuth train` writes"
        )


class LiveReport:
    """`look()` reads what is new; `tag` differs when files have changed since, and `state` and `problems` are those of
    this moment. `page`, `questions` and `rollouts` are what a browser asks for, from any thread. If the folder
    disappears, all stay as they were."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.state = RunState(kind="waiting", sentence="waiting")
        self.problems: list[str] = []
        self._run = RunFiles(folder=folder, recipe_text="", rollouts=[], **EMPTY)
        self._lock = Lock()
        self._server = secrets.token_hex(4)  # a page that is left open may ask the next server
        self._changes = self._evaluated = 0
        self._tail = MetricsTail(folder / "metrics.jsonl")
        self._known: dict[str, tuple[Stamp, list[str]]] = {}
        self._ended: list[str] = []
        self._drawn: dict[str, dict[str, Any]] = {}
        self._played: dict[Path, set[str]] = {}
        self._tokenizer_of: Path | None = None
        self._newest_tokenizer: Tokenizer | None = None

    @property
    def tag(self) -> str:
        """Differs when a file that the report shows has changed."""
        return f"{self._server}-{self._changes}"

    def look(self) -> None:
        """Reads what is new in the folder."""
        with self._lock:
            self.problems = []
            if not self.folder.is_dir():
                self.state = RunState(kind="gone", sentence="the folder is gone; this is what it held")
                return
            self._read("recipe", [self.folder / "recipe.toml"], self._read_recipe)
            self._read("manifest", [self.folder / "manifest.json"], self._read_manifest)
            self._read("evaluations", sorted((self.folder / "eval").glob("*.json")), self._read_evaluations)
            self._read("rollouts", [self.folder / "rollouts"], self._list_rollouts)
            try:
                self._changes += self._tail.look()
            except OSError as error:
                self.problems.append(f"metrics.jsonl: {error.strerror}")
            if self._tail.damaged:
                self.problems.append(f"metrics.jsonl: left out what is no row ({self._tail.damaged} lines)")
            try:
                self.state = state_of(self._traces())
            except MISSHAPEN as error:
                self.problems.append(f"the state is unknown: {_misshapen(error)}")

    def alarms(self) -> list[dict[str, Any]]:
        """The last alarms, the newest first, each with the sentence that its detector gives again."""
        found = [
            (stage, rows, at, str(name))
            for stage, rows in stages_of(self._tail.rows).items()
            for at, row in enumerate(rows)
            if isinstance(names := row.get("alarms"), list)
            for name in names
        ]
        return [
            {"stage": stage, "step": rows[at]["step"], "name": name, "sentence": _sentence(name, rows[: at + 1])}
            for stage, rows, at, name in found[-MAX_ALARMS:][::-1]
        ]

    def page(self) -> dict[str, Any]:
        """`{"tag", "html", "charts", "steps", "questions"}`: the body of the report, the steps whose episodes are
        stored, and the tag of the questions. Drawn once for a tag."""
        with self._lock:
            if self._drawn.get("page", {}).get("tag") != self.tag:
                self._drawn["page"] = {"tag": self.tag, **self._draw()}
            return self._drawn["page"]

    def questions(self) -> dict[str, Any]:
        """`{"tag", "questions", "texts"}` of the page that was drawn last."""
        with self._lock:
            shown = self._drawn.get("evaluations", {})
            return {name: shown.get(name) for name in ("tag", "questions", "texts")}

    def rollouts(self, step: int) -> dict[str, Any]:
        """`{"step", "of", "groups", "texts"}` of a step's first groups. Raises SleuthError if they cannot be read."""
        with self._lock:
            file = next((file for file in self._run.rollouts if step_of(file) == step), None)
            if file is None:
                raise SleuthError(f"{self.name} holds no rollouts of step {step}")
            pool = TextPool()
            try:
                shown = rollouts_shown([file], pool, self._tokenizer())
            except OSError as error:  # pruned or still being copied
                raise SleuthError(f"{file.name} cannot be read: {str(error).splitlines()[0]}") from None
        if not shown:
            raise SleuthError(f"{file.name} holds no episodes")
        return shown[0] | {"texts": pool.texts}

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(self) -> dict[str, Any]:
        """The body, without a part that is not as Sleuth writes it, and with a line about that."""
        run = replace(self._run, metrics=self._tail.rows)
        lines: list[str] = []
        for without in ((), *([part] for part in EMPTY), EMPTY):
            shown = replace(run, **{part: EMPTY[part] for part in without}, stale=[*run.stale, *lines])
            try:
                return self._drawn_of(shown)
            except (SleuthError, *MISSHAPEN) as error:
                lines = lines or [f"Not all can be drawn: the folder holds what Sleuth did not write ({error!r})."]
        raise AssertionError("an empty run can be drawn")

    def _drawn_of(self, run: RunFiles) -> dict[str, Any]:
        tag = f"{self._server}-{self._evaluated}-{len(run.evaluations)}"
        if self._drawn.get("evaluations", {}).get("tag") != tag:
            pool = TextPool()
            evaluated = evaluation_values(run, pool)
            self._drawn["evaluations"] = {"tag": tag, "values": evaluated, "texts": pool.texts} | {
                "questions": evaluated["questions"]
            }
        values = run_values(run) | self._drawn["evaluations"]["values"]
        values["overlap"] = overlap(run.evaluations, self._questions_played()) if run.evaluations else ""
        steps = [step_of(file) for file in run.rollouts]
        charts = [chart.read_out() for of_stage in values["stages"].values() for chart in of_stage]
        data = {"rollouts": steps, "opened": [max(0, len(steps) - 1)], "questions": values["questions"]}
        html = (
            environment()
            .get_template("body.html")
            .render(
                values,
                data=data,
                token_detail=self._tokenizer() is not None,
                held=0,
                nonce="",
                live=True,
                chart_size=(WIDTH, HEIGHT),
            )
        )
        return {"html": without_surrogates(html), "charts": charts, "steps": steps, "questions": tag}

    def _questions_played(self) -> set[str]:
        for file in self._run.rollouts:
            if file not in self._played:
                try:
                    self._played[file] = questions_played([file])
                except (OSError, SleuthError):  # the browser of rollouts says why
                    self._played[file] = set()
        return set().union(*self._played.values())

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, what: str, paths: list[Path], read: Callable[[list[Path]], None]) -> None:
        """Calls `read` if the files have changed. What it raises becomes problems, until they change again."""
        stamp = _stamp(paths)
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
            except MISSHAPEN as error:
                self.problems.append(f"{what}: {_misshapen(error)}")
            self._known[what] = stamp, self.problems
            self._changes += 1
            self.problems = before
        self.problems += self._known[what][1]

    def _read_recipe(self, paths: list[Path]) -> None:
        recipe, text = read_recipe(paths[0]) if paths else ({}, "")
        for stage in recipe.get("stage", ()):
            if any(type(stage.get(key, 0)) is not int for key in ("steps", "stop_after")):
                raise SleuthError("recipe.toml: a stage has no whole number of steps")
        self._run = replace(self._run, recipe=recipe, recipe_text=text)

    def _read_manifest(self, paths: list[Path]) -> None:
        manifest = read_object(paths[0]) if paths else {}
        self._ended = [name for name, cost in manifest.get("costs", {}).items() if "total" in cost["seconds"]]
        self._run = replace(self._run, manifest=manifest)

    def _read_evaluations(self, paths: list[Path]) -> None:
        evaluations, stale = {}, []
        for file in in_stage_order(self._run.recipe, paths):
            try:
                evaluation = read_stage_evaluation(self._run.recipe, file)
            except SleuthError as error:
                self.problems.append(_line(error))
                continue
            if (line := stale_line(file, evaluation, self._run.recipe, self._run.manifest)) is None:
                evaluations[file.stem] = evaluation
            else:
                stale.append(line)
        self._run = replace(self._run, evaluations=evaluations, stale=stale)
        self._evaluated += 1

    def _list_rollouts(self, paths: list[Path]) -> None:
        found = [file for folder in paths for file in folder.glob("*.parquet") if any(map(str.isdigit, file.stem))]
        self._run = replace(self._run, rollouts=sorted(found, key=step_of))

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
        newest = latest_checkpoint(self.folder / "checkpoints")
        return RunTraces(
            stages=self._run.recipe.get("stage", ()),
            rows=stages_of(self._tail.rows),
            evaluated={name: str(one.get("model", "")) for name, one in self._run.evaluations.items()},
            ended=self._ended,
            saved=saved_step(newest) if newest else 0,
            held=is_held(self.folder),
            age=max(0.0, time.time() - self._last_change()),
        )

    def _last_change(self) -> float:
        names = ("metrics.jsonl", "recipe.toml", "manifest.json", "eval", "rollouts", "checkpoints")
        return max((at / 1e9 for _, at, _ in _stamp([self.folder / name for name in names])), default=time.time())


def state_shown(reports: Sequence[LiveReport], at: int) -> dict[str, Any]:
    """`{"title", "tag", "html"}` of the report at this place: the states of all runs, and its own problems and
    alarms. Reads what is new."""
    for report in reports:
        report.look()
    shown = reports[at]
    html = environment().get_template("live.html").render(reports=reports, shown=shown, alarms=shown.alarms())
    title = f"{shown.state.sentence} · {shown.name}"
    return {"title": title, "tag": shown.tag, "html": without_surrogates(html)}


def shell() -> str:
    """The page before it has asked for anything; holds nothing of the runs."""
    return environment().get_template("watch.html").render(data={"charts": [], "rollouts": [], "texts": []})


def asset(name: str) -> bytes:
    """A style or the joined scripts of the page: `page.css`, `page.js`."""
    parts = {"page.css": ("report.css", "watch.css"), "page.js": SCRIPTS}[name]
    return b"\n".join(files("sleuth.report").joinpath("templates", part).read_bytes() for part in parts)


def _sentence(name: str, rows: Sequence[Row]) -> str:
    try:
        return (name in DETECTORS and DETECTORS[name](rows)) or ""
    except MISSHAPEN:  # rows that Sleuth did not write; the name is shown alone
        return ""


def _misshapen(error: Exception) -> str:
    return f"not as Sleuth writes it ({type(error).__name__}: {error})"


def _line(error: SleuthError) -> str:
    return str(error).replace("\n", " ")


def _stamp(paths: list[Path]) -> Stamp:
    """The stamp of those that exist."""
    found = []
    for path in paths:
        with suppress(OSError):  # it does not exist, or not any more
            status = path.stat()
            found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)
