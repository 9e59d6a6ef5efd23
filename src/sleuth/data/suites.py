"""Test sets asked side by side, as FlashRAG lays them out: `nq/test.jsonl`, `hotpotqa/dev.jsonl`, ...

A set is asked in its test split; where it has none, in its dev split, else in its train split (Search-R1,
arXiv:2503.09516). Ids begin anew in every set, so that one of ours is the set with the id: `nq/test_0`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sleuth.data.hub import HubPlace, files_below
from sleuth.data.questions import load_questions, questions_hash, select_tasks
from sleuth.data.rows import ENDINGS
from sleuth.recipe.data import ExaminationRecipe
from sleuth.types import SleuthError, Task

SEVEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
"""The sets whose simple mean Search-R1 and those after it report, in the order of their tables."""

SPLITS = ("test", "dev", "train")

SUITES = {"seven": Path("hf://RUC-NLPIR/FlashRAG_datasets")}
"""Suites by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """A set of a suite: `tasks` are the questions to ask, out of the `of` that its split holds."""

    name: str
    split: str
    tasks: tuple[Task, ...]
    of: int

    @property
    def ids_sha256(self) -> str:
        """Of the ids of the questions to ask, in whatever order."""
        return _ids_hash(self.tasks)

    @property
    def questions_sha256(self) -> str:
        """Of all that the questions to ask hold: under the same ids a set may have been corrected."""
        return questions_hash(sorted(self.tasks, key=lambda task: task.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Sets to ask side by side, and `notes`: what is to be said of the choice of them."""

    place: str
    per_set: int | None
    sets: tuple[QuestionSet, ...]
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[Task]:
        """The questions of all sets."""
        return [task for questions in self.sets for task in questions.tasks]

    @property
    def ids_sha256(self) -> str:
        """Of the ids of all questions to ask: two evaluations with equal hashes asked the same ones."""
        return _ids_hash(self.tasks)


def load_suite(suite: Path, per_set: int | None = None) -> Suite:
    """The sets of a folder, here or on the hub, or of a suite by its name; of each, `per_set` questions or all.

    Where the folder has any of the seven, those are asked and no others, because the mean is over them. Raises
    SleuthError for a folder without sets and for a malformed row.
    """
    folder = SUITES.get(str(suite), suite)
    splits = require_sets(suite)
    known = [name for name in SEVEN if name in splits]
    chosen = known or sorted(splits)
    sets = tuple(_question_set(name, folder / splits[name], per_set) for name in chosen)
    return Suite(place=str(suite), per_set=per_set, sets=sets, notes=tuple(_notes(suite, known, splits)))


def require_sets(suite: Path) -> dict[str, str]:
    """The sets of a suite, by name, each with its file. Raises SleuthError where there are none."""
    splits = sets_in(SUITES.get(str(suite), suite))
    if not splits:
        names = ", ".join(SUITES)
        raise SleuthError(
            f"{suite}: holds no test sets; should be a folder with a folder for each, such as nq/test.jsonl, "
            f"or a suite by name: {names}"
        )
    return splits


def examined_tasks(data: ExaminationRecipe) -> list[Task]:
    """All that an evaluation asks, from a file or from the sets of a suite."""
    return select_tasks(data) if data.suite is None else load_suite(data.suite, data.per_set).tasks


def sets_in(folder: Path) -> dict[str, str]:
    """The sets of a folder, by name, each with the file of the split to ask: `{"nq": "nq/test.jsonl"}`."""
    place = HubPlace.read(folder)
    if folder.name.endswith(ENDINGS):
        files = []
    elif place is not None:
        files = files_below(place)
    elif folder.is_dir():
        files = [f"{file.parent.name}/{file.name}" for file in sorted(folder.glob("*/*"))]
    else:
        files = []
    found: dict[str, str] = {}
    for split in reversed(SPLITS):
        for ending in reversed(ENDINGS):
            found |= {file.split("/")[0]: file for file in files if file.endswith(f"/{split}{ending}")}
    return {name: file for name, file in found.items() if file.count("/") == 1}


def chosen_by_hash(tasks: Sequence[Task], number: int | None) -> tuple[Task, ...]:
    """The `number` tasks whose ids have the least SHA-256, least first: the same ones in whatever order they come, and
    the first of any larger choice; all of them, as they come, for None."""
    if number is None:
        return tuple(tasks)
    return tuple(sorted(tasks, key=lambda task: hashlib.sha256(task.id.encode()).digest())[:number])


def _question_set(name: str, file: Path, per_set: int | None) -> QuestionSet:
    tasks = [replace(task, id=f"{name}/{task.id}", source=name) for task in load_questions(file)]
    split = file.name.partition(".")[0]
    return QuestionSet(name=name, split=split, tasks=chosen_by_hash(tasks, per_set), of=len(tasks))


def _notes(suite: Path, known: Sequence[str], splits: Iterable[str]) -> list[str]:
    """Which of the seven are not asked, and which others are not."""
    missing = [name for name in SEVEN if name not in known] if known else []
    others = [name for name in splits if name not in known] if known else []
    notes = [f"{suite} lacks {', '.join(missing)}: its mean is over {len(known)} of the seven sets"] if missing else []
    return notes + ([f"{suite}: not asked, being none of the seven: {', '.join(sorted(others))}"] if others else [])


def _ids_hash(tasks: Iterable[Task]) -> str:
    digest = hashlib.sha256()
    for task_id in sorted(task.id for task in tasks):
        digest.update(task_id.encode() + b"\n")
    return digest.hexdigest()
