from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from sleuth.data.questions import load_questions
from sleuth.retrieval.corpus import read_corpus
from sleuth.think.world_texts import ARITHMETIC, CARELESS, HASTY, TEXTS
from sleuth.types import Passage, SleuthError, Task
from sleuth.world import names
from sleuth.world.facts import make_world
from sleuth.world.library import Library
from sleuth.world.names import split_of
from sleuth.world.text import TextRows
from sleuth.world.wording import DESCRIPTIONS, QUESTIONS
from sleuth.world.write_world import CARD, CORPUS, draw_questions, write_world

FILES = (
    *(CORPUS, "qa_train.jsonl", "qa_test.jsonl", "refiner_train.jsonl", "refiner_test.jsonl"),
    *(*TEXTS.values(), *CARELESS.values(), HASTY, ARITHMETIC, CARD),
)
NAME = re.compile(r"(?:The )?[A-Z][a-z]+ [A-Z][a-z]+(?: of [A-Z][a-z]+)?")
MIX: dict[str, float] = {"reading": 0.2, "twins": 0.2, "phrasing": 0.1, "lookup": 0.2, "episode": 0.3}


@pytest.fixture(scope="module")
def folder(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return once("world-of-2000", partial(write_world, seed=0, people=2000))


@pytest.fixture(params=[200, 2000])
def sized(request: pytest.FixtureRequest, world: Path, folder: Path) -> tuple[Path, int]:
    """A world and the number of its people."""
    return {200: world, 2000: folder}[request.param], request.param


@pytest.fixture(scope="module")
def corpus(folder: Path) -> dict[str, Passage]:
    return {passage.id: passage for passage in read_corpus(folder / CORPUS)}


@pytest.fixture(scope="module")
def train(folder: Path) -> list[Task]:
    return load_questions(folder / "qa_train.jsonl")


@pytest.fixture(scope="module")
def test(folder: Path) -> list[Task]:
    return load_questions(folder / "qa_test.jsonl")


@pytest.fixture(scope="module")
def base_text() -> str:
    """Training text of the tiny base model."""
    rows = TextRows(2000, MIX, (0,))
    return "\n".join(piece.text for index in range(2000) for piece in rows.row(index))


def wording(question: str) -> str:
    """The question with its name replaced."""
    plain, count = NAME.subn("X", question)
    assert count == 1, question
    return plain


def wordings(split: names.Split) -> set[str]:
    """All wordings of a split, with X as the name."""
    subjects = ["X", *(text.format(subject="X") for texts in DESCRIPTIONS[split].values() for text in texts)]
    asked = [
        text.format(subject=subject) for texts in QUESTIONS[split].values() for text in texts for subject in subjects
    ]
    return {text[0].upper() + text[1:] for text in asked}


@pytest.fixture(scope="module")
def held_out(test: list[Task], corpus: dict[str, Passage]) -> set[str]:
    """The entities that the test questions look up, except towns."""
    return {corpus[gold].title for task in test for gold in task.gold_passages} - set(make_world(0, 2000).towns)


def test_the_same_seed_and_size_give_the_same_bytes(world: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "again", seed=0, people=200)
    write_world(tmp_path / "other", seed=1, people=200)
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (world / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (world / name).read_bytes()


def test_the_card_has_the_rows_and_hashes_of_the_files(folder: Path) -> None:
    card = json.loads((folder / CARD).read_text())
    assert (card["seed"], card["people"]) == (0, 2000)
    for name in FILES[:-1]:
        content = (folder / name).read_bytes()
        assert card["sha256"][name] == hashlib.sha256(content).hexdigest()
        assert card["rows"][name] == content.count(b"\n")


def test_sizes_follow_the_number_of_people_and_half_the_questions_have_two_hops(sized: tuple[Path, int]) -> None:
    folder, people = sized
    sizes = {
        "qa_train.jsonl": 2 * people,
        "qa_test.jsonl": people // 2,
        "refiner_train.jsonl": people // 2,
        "refiner_test.jsonl": people // 4,
    }
    for name, count in sizes.items():
        kinds = Counter(task.kind for task in load_questions(folder / name))
        assert kinds == {"one_hop": count // 2, "two_hop": count // 2}


def test_no_question_is_asked_twice(sized: tuple[Path, int]) -> None:
    texts = [task.question for name in FILES[1:3] for task in load_questions(sized[0] / name)]
    assert len(set(texts)) == len(texts)


def test_no_test_entity_occurs_in_a_training_question_or_in_the_base_text(
    train: list[Task], held_out: set[str], base_text: str
) -> None:
    read = "\n".join([base_text, *(task.question for task in train)])
    assert len(held_out) > 500
    assert not [name for name in held_out if name in read]


def test_no_test_wording_occurs_in_a_training_question_or_in_the_base_text(
    train: list[Task], test: list[Task], base_text: str
) -> None:
    read = {wording(question) for question in re.findall(r"Question: (.*)\n", base_text)}
    assert wordings("train").isdisjoint(wordings("test"))
    assert read | {wording(task.question) for task in train} <= wordings("train")
    assert {wording(task.question) for task in test} <= wordings("test")


def test_the_last_gold_passage_of_a_written_question_states_its_answer(
    train: list[Task], test: list[Task], corpus: dict[str, Passage]
) -> None:
    for task in (*train, *test):
        assert task.golden_answers[0] in corpus[task.gold_passages[-1]].text
        assert len(task.gold_passages) == (1 if task.kind == "one_hop" else 2)


@pytest.mark.parametrize("people", [200, 2000, 20_000])
def test_names_are_unique_so_that_every_question_has_one_answer(people: int) -> None:
    world = make_world(0, people)
    known = [*world.people, *world.works, *world.firms, *world.towns]
    assert len(set(known)) == len(known)
    assert (len(world.people), len(world.works), len(world.firms)) == (people, people // 2, people // 10)


def test_two_hops_through_a_town_stay_in_their_split() -> None:
    world = make_world(2, 300)
    library = Library(world, random.Random(2))
    for split in names.SPLITS:
        for question in islice(draw_questions(world, library, split, random.Random(2)), 120):
            subjects = [hop.subject for hop in question.hops]
            assert subjects[0] not in world.towns
            assert {split_of(subject) for subject in subjects if subject not in world.towns} == {split}


def copied(world: Path, folder: Path) -> None:
    """The files of a world alone."""
    for name in FILES:
        shutil.copyfile(world / name, folder / name)


def test_a_world_is_replaced_and_other_files_of_its_folder_stay(world: Path, tmp_path: Path) -> None:
    copied(world, tmp_path)
    (tmp_path / "index").mkdir()
    write_world(tmp_path, seed=1, people=300)
    assert json.loads((tmp_path / CARD).read_text())["people"] == 300
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "index"}


def test_a_folder_without_a_world_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / CORPUS).write_text("mine")
    with pytest.raises(SleuthError, match=r"exists and has no world\.json"):
        write_world(tmp_path, seed=0, people=200)
    assert (tmp_path / CORPUS).read_text() == "mine"


def test_a_failed_write_leaves_the_old_world(world: Path, tmp_path: Path) -> None:
    copied(world, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_world(tmp_path, seed=1, people=200, progress=stop)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("people", [0, 199, 200_001])
def test_an_impossible_size_is_refused(people: int, tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match="from 200 to 200,000 people"):
        write_world(tmp_path / "world", seed=0, people=people)
    assert not (tmp_path / "world").exists()
