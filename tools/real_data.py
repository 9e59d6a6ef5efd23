"""Sort the files of real questions for `make real`: `python tools/real_data.py DATA runs/real-data`.

Writes all passages as one corpus, the questions to read for (`questions.jsonl.gz`), and of those that make sense
without their passage: those that only episodes ask (`train.jsonl`), those about the articles that the recipe holds out
(`held_out.jsonl`), and those of the test (`test.jsonl`). `test_squad.jsonl` has all test questions of SQuAD kind, also
those that need their passage.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sleuth.data.questions import first_problems
from sleuth.data.rows import Row, read_rows
from sleuth.read.texts import ReadingRecipe, read_passages, read_reading_questions
from sleuth.recipe import SupervisedRecipe, load_recipe
from sleuth.recipe.shipped import shipped
from sleuth.types import Passage, SleuthError

QUESTIONS, TEST = "reading_train.jsonl.gz", "reading_test.jsonl.gz"
PASSAGES = ("reading_corpus.jsonl.gz", "corpus.jsonl.gz", "reading_intros.jsonl.gz")
ASKED_TENTHS = 3
"""Tenths of the standalone questions that only episodes ask. A question whose answer was read once or twice is answered
from memory: answered greedily, 0.38 of those were right, and 0.20 of those of the same articles that no row had."""


def main(data: Path, out: Path) -> None:
    """Read the files in `data` and write those in `out`. Before anything is written, raises SleuthError with a line
    for each problem of each file."""
    absent = [data / name for name in (QUESTIONS, TEST, *PASSAGES) if not (data / name).is_file()]
    if absent:
        raise SleuthError(*(f"{file}: no such file" for file in absent))
    files = [data / name for name in PASSAGES]
    passages = read_passages(files)
    train, test = read_questions([data / QUESTIONS, data / TEST], passages)
    held_out = {*reading_recipe().held_out}
    unseen = {row["id"] for row in train if passages[row["gold_ids"][0]].title in held_out}
    asked = {row["id"] for row in train if row["standalone"] and is_asked(row["id"])} - unseen
    out.mkdir(parents=True, exist_ok=True)
    (out / "corpus.jsonl.gz").write_bytes(b"".join(file.read_bytes() for file in files))
    write(out / "questions.jsonl.gz", [row for row in train if row["id"] not in asked])
    write(out / "train.jsonl", [row for row in train if row["id"] in asked])
    write(out / "held_out.jsonl", [row for row in train if row["id"] in unseen and row["standalone"]])
    write(out / "test.jsonl", [row for row in test if row["standalone"]])
    write(out / "test_squad.jsonl", [row for row in test if str(row.get("data_source")).startswith("squad")])


def is_asked(name: str) -> bool:
    """Whether the standalone question of this id is one of those that only episodes ask: the same in every run."""
    return zlib.crc32(name.encode()) % 10 < ASKED_TENTHS


def reading_recipe() -> ReadingRecipe:
    """The data of the recipe's first stage."""
    stage = load_recipe(shipped("recipes/tiny/real.toml")).stage[0]
    assert isinstance(stage, SupervisedRecipe)
    assert isinstance(stage.data, ReadingRecipe)
    return stage.data


def read_questions(files: Sequence[Path], passages: Mapping[str, Passage]) -> list[list[Row]]:
    """The rows of each file. Raises SleuthError with a line for each of the first problems of each."""
    read: list[list[Row]] = []
    problems: list[str] = []
    for file in files:
        try:
            read_reading_questions(file, passages)
            rows = [*read_rows(file)]
            if problems_of_rows := [*_problems(rows)]:
                raise SleuthError(*first_problems(problems_of_rows, len(rows), file))
            read.append([row for _, row in rows])
        except SleuthError as error:
            problems += map(str, error.args)
    if problems:
        raise SleuthError(*problems)
    return read


def _problems(rows: Sequence[tuple[str, Row]]) -> Iterator[str]:
    named: set[str] = set()
    for where, row in rows:
        if not isinstance(row.get("standalone"), bool):
            yield f"{where}: standalone should be true or false: does the question make sense by itself?"
        if not isinstance(row.get("id"), str) or row["id"] in named:
            yield f"{where}: id should be a text that no other question has, not {row.get('id')!r}"
        else:
            named.add(row["id"])


def write(file: Path, kept: Sequence[Row]) -> None:
    """Write rows, compressed if the name ends in `.gz`, and print how many."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept).encode()
    file.write_bytes(gzip.compress(lines, mtime=0) if file.suffix == ".gz" else lines)
    print(f"{file}: {len(kept):,} questions")


def folders(arguments: Sequence[str]) -> tuple[Path, Path]:
    """DATA and OUT. Raises SleuthError if there are not two arguments, as of `make real` without DATA."""
    if len(arguments) != 2:
        raise SleuthError("expected two folders, DATA and OUT; with make: make real DATA=FOLDER")
    return Path(arguments[0]), Path(arguments[1])


if __name__ == "__main__":
    try:
        main(*folders(sys.argv[1:]))
    except SleuthError as error:
        sys.exit("\n".join(f"error: {line}" for line in error.args))
