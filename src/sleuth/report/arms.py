"""The arms of a comparison: one evaluation each, or several (one a seed), with their runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.paired import TRAINED, Evaluation, arms_of, records_of
from sleuth.report.run_files import RunFiles, read_evaluation, read_run, read_with_sets
from sleuth.types import SleuthError

MAX_ARMS = 8
EVALUATE = "`sleuth eval MODEL --questions FILE --out x.json` makes one"
UNNAMED = ("eval", "checkpoints")
"""Parts of a path that names of arms leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One evaluation; that of a suite has the records of its sets. `run` is the run whose curves belong to it; None if
    a file was given. `protocol` is that of the evaluation, `trained` that of its checkpoint, if they are known."""

    file: Path
    evaluation: Evaluation
    run: RunFiles | None
    protocol: ProtocolCard | None
    trained: ProtocolCard | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison: `Arm(name="credit", members=(a, b))` has two runs of the same kind."""

    name: str
    members: tuple[Evaluated, ...]

    @property
    def first(self) -> Evaluated:
        """The evaluation whose protocol and transcripts represent the arm."""
        return self.members[0]


def read_arms(places: Sequence[str]) -> list[Arm]:
    """The arms that a user named: runs, checkpoints of runs or evaluation files; `NAME=A,B` is an arm of several. The
    arms of a single run are its evaluations.

    Raises SleuthError with a line for each path without an evaluation, and for fewer than two arms.
    """
    wanted: list[tuple[str, list[Callable[[], Evaluated]]]]
    if len(places) == 1 and _is_run(Path(places[0])):
        run = read_run(Path(places[0]))
        names = [name for name in arms_of(run.evaluations) if name not in run.unanswered]
        wanted = [(name, [partial(_of_evaluation, run, name)]) for name in names]
    else:
        named = [_split(place) for place in places]
        runs = {place: read_run(place) for _, members in named for place in map(Path, members) if _is_run(place)}
        of_run = partial(_of_run, stage=_shared_stage(list(runs.values())))
        short_names = iter(distinct_names([members[0] for name, members in named if name is None]))
        wanted = [
            (
                next(short_names) if name is None else name,
                [partial(of_run, runs[at]) if at in runs else partial(_of_place, at) for at in map(Path, members)],
            )
            for name, members in named
        ]
    arms, problems = list[Arm](), list[object]()
    for name, members in wanted:
        evaluated = list[Evaluated]()
        for read in members:
            try:
                evaluated.append(read())
            except SleuthError as error:  # raised with those of the other members
                problems += error.args
        arms.append(Arm(name=name, members=tuple(evaluated)))
    if problems:
        raise SleuthError(*problems)
    _check(arms)
    return arms


def _split(place: str) -> tuple[str | None, list[str]]:
    """`plain=runs/a,runs/b` as ("plain", ["runs/a", "runs/b"]); an existing path is not split."""
    name, equals, members = place.partition("=")
    if not equals or Path(place).exists():
        return None, [place]
    if not name or not all(members.split(",")):
        raise SleuthError(f"{place}: an arm is a name and its runs: plain=runs/a,runs/b")
    return name, members.split(",")


def _check(arms: Sequence[Arm]) -> None:
    if len(arms) < 2:
        raise SleuthError(
            "nothing to compare with: give two runs, checkpoints or evaluation files, or one run that holds two"
        )
    if len(arms) > MAX_ARMS:
        raise SleuthError(
            f"{len(arms)} sides are too many to read: give at most {MAX_ARMS}, or arms: plain=runs/a,runs/b"
        )
    require_distinct([member.file for arm in arms for member in arm.members])
    for name, count in Counter(arm.name for arm in arms).items():
        if count > 1:
            raise SleuthError(f"{name}: two arms have this name; give them others: {name}_2=PLACE")


def require_distinct(places: Sequence[Path]) -> None:
    """Raises SleuthError for one that is given twice."""
    for place in places:
        if [other.resolve() for other in places].count(place.resolve()) > 1:
            raise SleuthError(f"{place}: is given twice")


# -- one evaluation -------------------------------------------------------------------------------------------------


def _of_place(place: Path) -> Evaluated:
    """The evaluation in a file, or of a checkpoint."""
    if place.is_file() and place.suffix == ".json":
        return _with_protocols(place, read_with_sets(place, read_evaluation), None)
    if place.is_dir() and _is_run(place.parent.parent) and place.parent.name == "checkpoints":
        return _of_checkpoint(place)
    wrong = (
        "neither a run nor a checkpoint of a run; " + EVALUATE
        if place.is_dir()
        else "no such run, checkpoint or evaluation file"
    )
    raise SleuthError(
        f"{place}: {'not an evaluation file (.json), a run or a checkpoint' if place.is_file() else wrong}"
    )


def _is_run(place: Path) -> bool:
    return (place / "recipe.toml").is_file()


def _shared_stage(runs: Sequence[RunFiles]) -> str | None:
    """The last evaluate stage that all runs have reached, if one of them has not reached its own last one."""
    if not any(run.awaited for run in runs):
        return None
    shared = (name for name in reversed(runs[0].evaluate_stages) if all(name in run.evaluations for run in runs))
    return next(shared, None)


def _of_run(run: RunFiles, stage: str | None) -> Evaluated:
    """The evaluation of this stage, or of the run's last evaluate stage; without one `trained`, else the first one."""
    wanted = [*([stage] if stage else []), *reversed(run.evaluate_stages), TRAINED, *list(run.evaluations)[:1]]
    if not run.evaluations:
        raise SleuthError(" ".join([f"{run.folder}: this run holds no evaluation yet; {EVALUATE}", *run.stale]))
    return _of_evaluation(run, next(name for name in wanted if name in run.evaluations))


def _of_checkpoint(place: Path) -> Evaluated:
    run = read_run(place.parent.parent)
    names = [name for name in arms_of(run.evaluations) if _model(run.evaluations[name]).name == place.name]
    if not names:
        raise SleuthError(f"{place}: its run holds no evaluation of this checkpoint; {EVALUATE}, which can be compared")
    if len(names) > 1:
        files = " or ".join(str(run.folder / "eval" / f"{name}.json") for name in names)
        raise SleuthError(f"{place}: was evaluated more than once; give the file, {files}")
    return _of_evaluation(run, names[0])


def _of_evaluation(run: RunFiles, name: str) -> Evaluated:
    evaluation = {**run.evaluations[name], "records": records_of(run.evaluations, name)}
    return _with_protocols(run.folder / "eval" / f"{name}.json", evaluation, run)


def _with_protocols(file: Path, evaluation: Evaluation, run: RunFiles | None) -> Evaluated:
    answered = {record.get("set") for record in evaluation["records"]}
    if lacking := [f"{file.stem}@{name}.json" for name in evaluation.get("sets", ()) if name not in answered]:
        raise SleuthError(
            f"{file}: is the mean over several sets, and questions are paired within a set: beside it should be "
            f"{' and '.join(lacking)}, with the answers"
        )
    if not evaluation["records"]:
        raise SleuthError(f"{file}: holds no answered questions; {EVALUATE}")
    model = _model(evaluation)
    here = run.folder / "checkpoints" / model.name if run else model  # a run folder may have been moved
    trained = ProtocolCard.read(here if here.is_dir() else model)
    return Evaluated(file=file, evaluation=evaluation, run=run, protocol=_card(file, evaluation), trained=trained)


def _model(evaluation: Evaluation) -> Path:
    return Path(str(evaluation.get("model", "")))


def _card(file: Path, evaluation: Evaluation) -> ProtocolCard | None:
    if (card := evaluation.get("protocol")) is None:
        return None
    try:
        return ProtocolCard.model_validate_json(json.dumps({key: card[key] for key in card if key != "hash"}))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, ("protocol", *problem["loc"])))
        raise SleuthError(f"{file}: {where}: {problem['msg']}; write the file again with `sleuth eval`") from None


# -- names -----------------------------------------------------------------------------------------------------------


def distinct_names(places: Sequence[str]) -> list[str]:
    """The shortest distinct ends of the paths: `runs/a` and `runs/b` give `a` and `b`."""
    paths = [Path(place.removesuffix(".json")).resolve() for place in places]
    parts = [[part for part in path.parts if part not in UNNAMED] for path in paths]
    longest = max(map(len, parts), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
