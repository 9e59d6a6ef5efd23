"""Which sets are asked, in which split, and which of their questions."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from sleuth.answers.suites import SEVEN, SUITES, NamedSuite, chosen_by_hash, load_suite
from sleuth.types import SleuthError, Task


def write_set(folder: Path, file: str, size: int = 3, order: int | None = None) -> None:
    rows = [
        {"id": f"q_{i}", "question": f"Who is {i}?", "golden_answers": [str(i)], "metadata": {}} for i in range(size)
    ]
    if order is not None:
        random.Random(order).shuffle(rows)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_test_split_is_asked_else_dev_else_train(tmp_path: Path) -> None:
    for file in ("nq/train.jsonl", "nq/dev.jsonl", "nq/test.jsonl", "musique/train.jsonl", "musique/dev.jsonl"):
        write_set(tmp_path, file)
    write_set(tmp_path, "popqa/train.jsonl")
    suite = load_suite(tmp_path)
    assert [(one.name, one.split) for one in suite.sets] == [("nq", "test"), ("popqa", "train"), ("musique", "dev")]
    assert (suite.tasks[0].id, suite.tasks[0].source, suite.tasks[3].id) == ("nq/q_0", "nq", "popqa/q_0")
    [note] = suite.notes
    assert note.endswith("bamboogle: its mean is over 3 of the seven sets")


def test_the_seven_are_asked_in_the_order_of_the_published_tables_and_no_others_beside_them(tmp_path: Path) -> None:
    for name in (*sorted(SEVEN), "eli5"):
        write_set(tmp_path, f"{name}/test.jsonl")
    suite = load_suite(tmp_path)
    assert tuple(one.name for one in suite.sets) == SEVEN
    assert suite.notes == (f"{tmp_path}: left out, not among the seven: eli5",)


def test_a_named_suite_asks_its_sets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nq", "hotpotqa", "musique", "eli5"):
        write_set(tmp_path, f"{name}/test.jsonl")
    here = NamedSuite(folder=tmp_path, questions=SUITES["nq_hotpotqa"].questions)
    monkeypatch.setitem(SUITES, "nq_hotpotqa", here)
    suite = load_suite(Path("nq_hotpotqa"))
    assert ([one.name for one in suite.sets], suite.notes) == (["nq", "hotpotqa"], ())
    (tmp_path / "hotpotqa" / "test.jsonl").unlink()
    [note] = load_suite(Path("nq_hotpotqa")).notes
    assert note == "nq_hotpotqa lacks hotpotqa: its mean is over 1 of its 2 sets"


def test_a_subset_is_chosen_by_a_hash_of_the_id_and_never_by_order(tmp_path: Path) -> None:
    for order in (1, 2):
        write_set(tmp_path / str(order), "nq/test.jsonl", size=50, order=order)
    one, other = (load_suite(tmp_path / str(order), per_set=10) for order in (1, 2))
    assert one.tasks == other.tasks
    assert one.ids_sha256 == other.ids_sha256
    digests = sorted(hashlib.sha256(f"nq/q_{i}".encode()).hexdigest() for i in range(50))
    assert [hashlib.sha256(task.id.encode()).hexdigest() for task in one.tasks] == digests[:10]
    assert (one.sets[0].total, len(one.tasks)) == (50, 10)
    assert load_suite(tmp_path / "1", per_set=5).tasks == one.tasks[:5]
    [whole] = load_suite(tmp_path / "1", per_set=200).sets
    assert (len(whole.tasks), whole.total) == (50, 50)
    assert one.ids_sha256 != load_suite(tmp_path / "1").ids_sha256
    lines = "".join(f"{id_}\n" for id_ in sorted(task.id for task in one.tasks))
    assert one.ids_sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_the_ids_chosen_are_the_same_for_ever() -> None:
    tasks = [Task(id=f"nq/test_{i}", question="?", golden_answers=("x",)) for i in range(3610)]
    # Written down once: if this fails, figures on subsets can no longer be compared with those of earlier versions.
    assert [task.id for task in chosen_by_hash(tasks, 3)] == ["nq/test_2916", "nq/test_1307", "nq/test_1791"]


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_a_folder_without_sets_is_told_what_one_looks_like(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "questions.jsonl").write_text("")
    with pytest.raises(SleuthError, match=r"holds no test sets; .*nq/test.jsonl, or a suite by name: seven"):
        load_suite(tmp_path / name)
