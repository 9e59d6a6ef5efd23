"""The files of a run folder as plain data. Missing parts are empty: a run has a page while it runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sleuth import family
from sleuth.evaluation.paired import records_of
from sleuth.host.model_path import read_object
from sleuth.recipe.renamed import renamed_keys
from sleuth.recipe.shipped import DOCUMENTS, TRAINING
from sleuth.runs.chain import require_regular, warning
from sleuth.runs.eval_file import is_stale, mark_rows, read_cards
from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError

WITHOUT_QUESTIONS = ("probe", "gate", "win_rate", "reason")
"""Kinds of stages whose records are not answered questions."""
MISSHAPEN = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading a file of another shape than Sleuth writes can raise."""
WATCHED_BYTES = 256 * 2**20
"""A larger recipe, manifest or evaluation is not read while its run is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files of one run. `metrics` has one row a step; `evaluations` maps a name (`base`, `trained`) to its file;
    `rollouts` are the parquet files in the order of their steps, unread; `judges` are the rows of their cards; `stale`
    has a sentence for each evaluation that is left out because its checkpoint has other weights now. `warning` is a
    line about files that are not as the run wrote them."""

    folder: Path
    recipe: dict[str, Any] = field(default_factory=dict)
    recipe_text: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    rollouts: list[Path] = field(default_factory=list)
    judges: Sequence[tuple[str, ...]] = ()
    stale: Sequence[str] = ()
    warning: str | None = None

    @property
    def evaluate_stages(self) -> list[str]:
        """The names of the stages that ask questions, as the recipe has them."""
        return [str(stage.get("name")) for stage in self.recipe.get("stage", ()) if stage.get("kind") == "evaluate"]

    @property
    def unanswered(self) -> set[str]:
        """The names of the stages whose records are not answered questions."""
        return {str(one.get("name")) for one in self.recipe.get("stage", ()) if one.get("kind") in WITHOUT_QUESTIONS}

    @property
    def awaited(self) -> str | None:
        """The last of them, if the run has not measured it yet."""
        return next((name for name in self.evaluate_stages[-1:] if name not in self.evaluations), None)


def run_in(folder: Path) -> Path:
    """The run in the home of a folder of documents; any other folder as it is."""
    return folder / TRAINING if (folder / DOCUMENTS).is_file() else folder


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder. Raises SleuthError if it is not a run or one of its files is invalid."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise SleuthError(f"{folder}: {what}; give the folder of a run, for example runs/demo")
    if not (folder / "recipe.toml").is_file():
        runs = "".join(f", such as {one.parent}" for one in sorted(folder.glob("*/recipe.toml"))[:1])
        raise SleuthError(
            f"{folder}: not a run folder, it holds no recipe.toml; give a folder that `sleuth train` wrote{runs}"
        )
    require_regular(folder)
    return replace(_read(folder, lambda name: nullcontext(), None), warning=warning(folder))


def look_at_run(folder: Path) -> tuple[RunFiles, list[str]]:
    """What there is of a run that another process writes, whatever state it is in, and a line about each file that
    cannot be read and is left out."""
    problems, damaged = list[str](), list[int]()

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        try:
            yield
        except (SleuthError, OSError) as error:
            problems.append(str(error).replace("\n", " "))
        except MISSHAPEN as error:
            problems.append(f"{name}: not as Sleuth writes it ({type(error).__name__}: {error})")

    run = _read(folder, noting, damaged)
    if damaged:
        problems.append(f"metrics.jsonl: left out what is no row ({len(damaged)} lines)")
    return run, problems


def _read(folder: Path, noting: Callable[[str], AbstractContextManager[None]], damaged: list[int] | None) -> RunFiles:
    run = RunFiles(folder=folder)
    stale: list[str] = []

    def bounded(file: Path) -> Path:
        if damaged is not None and (size := file.stat().st_size) > WATCHED_BYTES:
            raise SleuthError(f"{file.name}: {size:,} bytes are too many to show")
        return file

    with noting("recipe.toml"):
        if (folder / "recipe.toml").is_file():
            recipe, text = _read_recipe(bounded(folder / "recipe.toml"))
            run = replace(run, recipe=recipe, recipe_text=text)
    with noting("manifest.json"):
        if (folder / "manifest.json").is_file():
            run = replace(run, manifest=read_object(bounded(folder / "manifest.json")))
    with noting("metrics.jsonl"):
        run = replace(run, metrics=MetricsFile(folder / "metrics.jsonl").rows(damaged))
    with noting("judges.json"):
        run = replace(run, judges=mark_rows(read_cards(folder).values()))
    files = list((folder / "eval").glob("*.json"))
    with noting("recipe.toml"):
        files.sort(key=partial(_order_of, run.recipe))
    for file in files:
        with noting(file.name):
            evaluation = _read_stage_evaluation(run.unanswered, bounded(file))
            if (line := _stale_line(file, evaluation, run.recipe)) is None:
                run.evaluations[file.stem] = evaluation
            else:
                stale.append(line)
    return replace(run, rollouts=sorted((folder / "rollouts").glob("*.parquet")), stale=stale)


def _read_recipe(file: Path) -> tuple[dict[str, Any], str]:
    """The resolved recipe of a run as tables, and its text. Raises SleuthError if it is no TOML."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        recipe = renamed_keys(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SleuthError(f"{file}: invalid TOML: {error}") from error
    for stage in recipe.get("stage", ()):  # an installed family has rows of figures
        family.knows("stages", str(stage.get("kind", "")))
        if isinstance(env := stage.get("env"), Mapping):
            family.knows("environments", str(env.get("kind", "")))
    return recipe, text


def _read_stage_evaluation(unanswered: set[str], file: Path) -> dict[str, Any]:
    """An evaluation file; without its records if those are not answered questions. Raises SleuthError if invalid."""
    if file.stem.partition("@")[0] in unanswered:
        return {key: value for key, value in read_object(file).items() if key != "records"}
    return read_evaluation(file)


def _stale_line(file: Path, evaluation: Mapping[str, Any], recipe: Mapping[str, Any]) -> str | None:
    """A sentence, if the checkpoint that `RUN/eval/NAME.json` names has other weights in the run now."""
    model = str(evaluation.get("model", ""))
    checkpoint = file.parents[1] / "checkpoints" / Path(model).name  # the run folder may have been moved
    if model == recipe.get("model") or not is_stale(evaluation, checkpoint):
        return None
    return f"Left out: {file} is of other weights than {checkpoint} has now; `sleuth train` measures it again."


def read_with_sets(file: Path, read: Callable[[Path], dict[str, Any]] = read_object) -> dict[str, Any]:
    """An evaluation with its records; those of a suite are read from the files of its sets, beside it."""
    evaluation = read(file)
    sets = (file.parent / f"{file.stem}@{name}.json" for name in evaluation.get("sets", ()))
    of_sets = {one.stem: read(one) for one in sets if one.is_file()}
    return evaluation | {"records": records_of({**of_sets, file.stem: evaluation}, file.stem)}


def _order_of(recipe: dict[str, Any], file: Path) -> tuple[int, bool, str]:
    """Sort key of an evaluation: by the order of stages in the recipe, `_before` ahead of `_after`."""
    name = file.stem.partition("@")[0]
    stage = name.removesuffix("_before").removesuffix("_after")
    names = [stage.get("name") for stage in recipe.get("stage", ())]
    index = next((names.index(one) for one in (name, stage) if one in names), len(names))
    return index, name.endswith("_after"), file.stem


OF_TEXTS = {
    "no_signal": "holds the groups of a gate, and no answered questions",
    "win_rate": "compares two models already, and `sleuth win-rate MODEL RECIPE --against OTHER` two others",
    "thoughts": "holds thoughts about texts, and no answered questions",
    "right": "holds solved problems, several solutions to each, and no answered questions",
}
"""What a file holds that is no evaluation of questions, by a key of it or of its records."""


def read_evaluation(file: Path) -> dict[str, Any]:
    """Reads an evaluation file. Raises SleuthError if it is invalid, or of something else than questions."""
    evaluation = read_object(file)
    records = evaluation.get("records", ())
    keys = {*evaluation, *(records[0] if records else ())}
    if (other := next((of for key, of in OF_TEXTS.items() if key in keys), None)) is not None:
        raise SleuthError(f"{file}: {other}; a sweep's table compares runs in such figures (`sleuth sweep FILE`)")
    for place, record in enumerate(records):
        lacking = [key for key in ("id", "question", "golden_answers") if key not in record]
        if lacking:
            raise SleuthError(
                f"{file}: records[{place}] has no `{lacking[0]}`; write the file again with `sleuth eval`"
            )
    return evaluation
