"""Sort the files of real questions for `make real`: `python tools/real_data.py DATA runs/real-data`.

Writes all passages as one corpus, and the questions that make sense without their passage: to train (`train.jsonl`),
about the articles that the recipe holds out (`held_out.jsonl`), and to test (`test.jsonl`). `test_squad.jsonl` has all
test questions of SQuAD kind, also those that need their passage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from sleuth.data.rows import Row, read_rows
from sleuth.factories.reading_texts import read_passages, read_reading_questions
from sleuth.recipe import ReadingRecipe, SupervisedRecipe, load_recipe
from sleuth.recipe.shipped import shipped
from sleuth.types import SleuthError

QUESTIONS, TEST = "reading_train.jsonl.gz", "reading_test.jsonl.gz"
PASSAGES = ("reading_corpus.jsonl.gz", "corpus.jsonl.gz", "reading_intros.jsonl.gz")


def main(data: Path, out: Path) -> None:
    """Read the files in `data` and write those in `out`."""
    absent = [data / name for name in (QUESTIONS, TEST, *PASSAGES) if not (data / name).is_file()]
    if absent:
        raise SleuthError(*(f"{file}: no such file" for file in absent))
    files = [data / name for name in PASSAGES]
    passages = read_passages(files)
    for name in (QUESTIONS, TEST):  # all that is wrong with their rows
        read_reading_questions(data / name, passages)
    held_out = reading_recipe().held_out
    out.mkdir(parents=True, exist_ok=True)
    (out / "corpus.jsonl.gz").write_bytes(b"".join(file.read_bytes() for file in files))
    (out / "questions.jsonl.gz").write_bytes((data / QUESTIONS).read_bytes())
    train = [row for row in rows(data / QUESTIONS) if row["standalone"]]
    test = [*rows(data / TEST)]
    write(out / "train.jsonl", [row for row in train if passages[row["gold_ids"][0]].title not in held_out])
    write(out / "held_out.jsonl", [row for row in train if passages[row["gold_ids"][0]].title in held_out])
    write(out / "test.jsonl", [row for row in test if row["standalone"]])
    write(out / "test_squad.jsonl", [row for row in test if row["data_source"].startswith("squad")])


def reading_recipe() -> ReadingRecipe:
    """The data of the recipe's first stage."""
    stage = load_recipe(shipped("recipes/tiny/real.toml")).stage[0]
    assert isinstance(stage, SupervisedRecipe)
    assert isinstance(stage.data, ReadingRecipe)
    return stage.data


def rows(file: Path) -> Iterator[Row]:
    """The rows of a file. Raises SleuthError for one that does not say whether it makes sense without its passage."""
    for where, row in read_rows(file):
        if not isinstance(row.get("standalone"), bool):
            raise SleuthError(f"{where}: standalone should be true or false: does the question make sense by itself?")
        yield row


def write(file: Path, kept: list[Row]) -> None:
    """Write rows, and print how many."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
    print(f"{file}: {len(kept):,} questions")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except SleuthError as error:
        sys.exit("\n".join(f"error: {line}" for line in error.args))
