"""`tools/real_data.py`: what `make real` trains and tests on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sleuth.retrieval.corpus import read_corpus
from sleuth.types import SleuthError
from tools import real_data

TEXT = "The harbour of {} was built in 1903."


@pytest.fixture
def folder(tmp_path) -> Path:
    """A passage in each file, and questions about it and about an article that the recipe holds out."""
    passages = {"reading_corpus": ("r0", "Tarn"), "corpus": ("0", "Buddhism"), "reading_intros": ("ri0", "Kolm")}
    for file, (name, title) in passages.items():
        write(tmp_path / f"{file}.jsonl.gz", [{"id": name, "contents": f'"{title}"\n{TEXT.format(title)}'}])
    rows = [question(f"q{at}", name, at != 1) for at, name in enumerate(("r0", "r0", "0", "ri0", "r0", "0"))]
    write(tmp_path / "reading_train.jsonl.gz", rows)
    tested = [question("t0", "r0", False), question("t1", "r0", True) | {"data_source": "qamr"}]
    tested += [question("t2", "r0", True) | {"data_source": None}]
    write(tmp_path / "reading_test.jsonl.gz", tested)
    return tmp_path


def question(name: str, passage: str, standalone: bool) -> dict:
    title = {"r0": "Tarn", "0": "Buddhism", "ri0": "Kolm"}[passage]
    return {
        "id": name,
        "question": "When was the harbour built?",
        "golden_answers": ["1903"],
        "gold_ids": [passage],
        "answer_start": TEXT.format(title).index("1903"),
        "data_source": "squad_dev",
        "standalone": standalone,
    }


def write(file: Path, rows: list[dict]) -> None:
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def ids(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_questions_that_episodes_ask_are_not_read_and_held_out_articles_are_set_apart(folder):
    """q1 needs its passage, q2 and q5 are about a held-out article; q1, q4 and q5 are of the three tenths."""
    assert [at for at in range(6) if real_data.is_asked(f"q{at}")] == [1, 4, 5]
    real_data.main(folder, folder / "out")
    assert ids(folder / "out/train.jsonl") == ["q4"]
    assert ids(folder / "out/held_out.jsonl") == ["q2", "q5"]
    assert ids(folder / "out/test.jsonl") == ["t1", "t2"]
    assert ids(folder / "out/test_squad.jsonl") == ["t0"]
    assert [passage.id for passage in read_corpus(folder / "out/corpus.jsonl.gz")] == ["r0", "0", "ri0"]
    read = gzip.decompress((folder / "out/questions.jsonl.gz").read_bytes()).decode()
    whole = gzip.decompress((folder / "reading_train.jsonl.gz").read_bytes()).decode()
    assert read.splitlines() == [line for line in whole.splitlines() if '"q4"' not in line]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "t0"}, "reading_test.jsonl.gz:2: id should be a text that no other question has, not 't0'"),
        ({"standalone": None}, "reading_test.jsonl.gz:2: standalone should be true or false"),
        ({"gold_ids": ["r9"]}, "reading_test.jsonl.gz:2: passage 'r9' is in none of the files of passages"),
        ({"answer_start": 3}, "reading_test.jsonl.gz:2: at character 3 of passage 'r0' stands"),
    ],
)
def test_a_row_that_cannot_be_used_is_a_line_beside_those_of_the_other_file(folder, change, complaint):
    write(folder / "reading_train.jsonl.gz", [question("q0", "r0", True) | {"gold_ids": ["r9"]}])
    write(folder / "reading_test.jsonl.gz", [question("t0", "r0", True), question("t1", "r0", True) | change])
    with pytest.raises(SleuthError) as raised:
        real_data.main(folder, folder / "out")
    train, test = raised.value.args
    assert train.startswith(f"{folder}/reading_train.jsonl.gz:1: passage 'r9' is in none")
    assert test.startswith(f"{folder}/{complaint}")
    assert not (folder / "out").exists()


def test_without_a_folder_of_data_the_command_says_what_it_needs():
    with pytest.raises(SleuthError, match=r"expected two folders, DATA and OUT; with make: make real DATA=FOLDER"):
        real_data.folders(["runs/real-data"])
    assert real_data.folders(["data", "runs/real-data"]) == (Path("data"), Path("runs/real-data"))
