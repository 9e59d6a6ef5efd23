"""Suites of test sets in FlashRAG's layout: `nq/test.jsonl`, `hotpotqa/dev.jsonl`, ...

Each set uses its test split, else dev, else train (Search-R1, arXiv:2503.09516). Ids restart in every set, so that ours
are prefixed with the set: `nq/test_0`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sleuth.data.hub import HubLocation, files_below
from sleuth.data.questions import load_questions, questions_hash, select_tasks
from sleuth.data.rows import ENDINGS
from sleuth.recipe.data import EvalQuestionsRecipe
from sleuth.types import SleuthError, Task

SPLITS = ("test", "dev", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSuite:
    """A published choice of test sets in a `folder`; `questions` is the number of questions of each set."""

    folder: Path
    questions: Mapping[str, int]

    def asked(self, per_set: int | None) -> int:
        """The number of questions of all sets, with at most `per_set` of each."""
        return sum(size if per_set is None else min(size, per_set) for size in self.questions.values())


FLASHRAG = Path("hf://RUC-NLPIR/FlashRAG_datasets")
SIZES = {
    "nq": 3_610,
    "triviaqa": 11_313,
    "popqa": 14_267,
    "hotpotqa": 7_405,
    "2wikimultihopqa": 12_576,
    "musique": 2_417,
    "bamboogle": 125,
}
SEVEN = tuple(SIZES)
"""The sets whose unweighted mean Search-R1 and its successors report, in the order of their tables."""

SUITES = {
    "seven": NamedSuite(folder=FLASHRAG, questions=SIZES),
    "nq_hotpotqa": NamedSuite(folder=FLASHRAG, questions={name: SIZES[name] for name in ("nq", "hotpotqa")}),
}
"""Suites by name: Search-R1's, and that of slime's search example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """A set of a suite: `tasks` are the selected questions, out of `total` in its split."""

    name: str
    split: str
    tasks: tuple[Task, ...]
    total: int

    @property
    def ids_sha256(self) -> str:
        """The hash of the sorted ids of the tasks."""
        return _ids_hash(self.tasks)

    @property
    def questions_sha256(self) -> str:
        """The hash of all fields of the tasks, since a set may be corrected under the same ids."""
        return questions_hash(sorted(self.tasks, key=lambda task: task.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The sets of an evaluation, and `notes` about sets that are missing or left out."""

    place: str
    per_set: int | None
    sets: tuple[QuestionSet, ...]
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[Task]:
        """The tasks of all sets."""
        return [task for questions in self.sets for task in questions.tasks]

    @property
    def ids_sha256(self) -> str:
        """The hash of the sorted ids of all tasks."""
        return _ids_hash(self.tasks)


def load_suite(suite: Path, per_set: int | None = None) -> Suite:
    """The sets of a folder, local or on the hub, or of a named suite; `per_set` questions of each, or all.

    If a folder has any of the seven sets, only those are used, because the mean is over them. Raises SleuthError for a
    folder without sets and for a malformed row.
    """
    folder = folder_of(suite)
    splits = require_sets(suite)
    if named := SUITES.get(str(suite)):
        splits = {name: file for name, file in splits.items() if name in named.questions}
    known = [name for name in SEVEN if name in splits]
    chosen = known or sorted(splits)
    sets = tuple(_question_set(name, folder / splits[name], per_set) for name in chosen)
    return Suite(place=str(suite), per_set=per_set, sets=sets, notes=tuple(_notes(suite, known, splits)))


def folder_of(suite: Path) -> Path:
    """The folder of a suite's sets, by its name or as it is."""
    named = SUITES.get(str(suite))
    return named.folder if named else suite


def require_sets(suite: Path) -> dict[str, str]:
    """The file of each set of a suite by its name. Raises SleuthError without any."""
    splits = sets_in(folder_of(suite))
    if not splits:
        names = ", ".join(SUITES)
        raise SleuthError(
            f"{suite}: holds no test sets; should be a folder with a folder for each, such as nq/test.jsonl, "
            f"or a suite by name: {names}"
        )
    return splits


def eval_tasks(data: EvalQuestionsRecipe) -> list[Task]:
    """All tasks of an evaluation, from a file or from the sets of a suite."""
    return select_tasks(data) if data.suite is None else load_suite(data.suite, data.per_set).tasks


def sets_in(folder: Path) -> dict[str, str]:
    """The file of each set in a folder by its name, of the split to use: `{"nq": "nq/test.jsonl"}`; empty if none."""
    location = HubLocation.read(folder)
    files: list[str] = []
    if folder.name.endswith(ENDINGS):
        pass  # a file is no folder of sets
    elif location is not None:
        files = files_below(location)
    elif folder.is_dir():
        files = [f"{file.parent.name}/{file.name}" for file in sorted(folder.glob("*/*"))]
    sets: dict[str, str] = {}
    for split in reversed(SPLITS):
        for ending in reversed(ENDINGS):
            sets |= {file.split("/")[0]: file for file in files if file.endswith(f"/{split}{ending}")}
    return {name: file for name, file in sets.items() if file.count("/") == 1}


def chosen_by_hash(tasks: Sequence[Task], number: int | None) -> tuple[Task, ...]:
    """The `number` tasks with the smallest SHA-256 of their ids, in that order: independent of the input order, and a
    prefix of any larger choice. None returns all tasks in their order."""
    if number is None:
        return tuple(tasks)
    return tuple(sorted(tasks, key=lambda task: hashlib.sha256(task.id.encode()).digest())[:number])


def _question_set(name: str, file: Path, per_set: int | None) -> QuestionSet:
    tasks = [replace(task, id=f"{name}/{task.id}", source=name) for task in load_questions(file)]
    split = file.name.partition(".")[0]
    return QuestionSet(name=name, split=split, tasks=chosen_by_hash(tasks, per_set), total=len(tasks))


def _notes(suite: Path, known: Sequence[str], splits: Iterable[str]) -> list[str]:
    """Notes on missing sets of the seven, and on other sets that are left out."""
    asked = tuple(SUITES[str(suite)].questions) if str(suite) in SUITES else SEVEN
    missing = [name for name in asked if name not in known] if known else []
    others = [name for name in splits if name not in known] if known else []
    of = "the seven" if asked == SEVEN else f"its {len(asked)}"
    notes = [f"{suite} lacks {', '.join(missing)}: its mean is over {len(known)} of {of} sets"] if missing else []
    return notes + ([f"{suite}: left out, not among the seven: {', '.join(sorted(others))}"] if others else [])


def _ids_hash(tasks: Iterable[Task]) -> str:
    digest = hashlib.sha256()
    for task_id in sorted(task.id for task in tasks):
        digest.update(task_id.encode() + b"\n")
    return digest.hexdigest()
