"""Writes a world to files: corpus, questions, tool outputs and texts in the layouts of real data, and a card."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from sleuth import family
from sleuth.host.atomic import replacing_file
from sleuth.types import SleuthError
from sleuth.world.facts import World, make_world
from sleuth.world.library import REPORT_EVERY, Library, count_articles
from sleuth.world.names import Split, split_of
from sleuth.world.questions import Question, ask, one_hops, two_hops

CORPUS = "corpus.jsonl"
QUESTIONS: dict[Split, str] = {"train": "qa_train.jsonl", "test": "qa_test.jsonl"}
CARD = "world.json"
QUESTIONS_PER_PERSON: dict[Split, float] = {"train": 2.0, "test": 0.5}
"""Questions for each person."""
Rows = Iterable[Mapping[str, Any]]

Progress = Callable[[int, int], None]
"""Called with the number of steps done and of all steps: generating a passage, and writing any row."""


class FilesOfWorld(NamedTuple):
    """What the files of a world are made from."""

    world: World
    library: Library
    seed: int
    counts: Mapping[str, int]
    """Rows of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldFiles:
    """What a family adds: its files with the number of their rows in a world of so many people, their contents, and the
    entropies of its texts in nats."""

    counts: Callable[[int], Mapping[str, int]]
    contents: Callable[[FilesOfWorld], Mapping[str, Rows]]
    nats: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldCard:
    """What was written: equal seeds and sizes give equal hashes. `nats` has the entropies of the texts, by kind.

    `WorldCard(seed=0, people=2000, rows={"corpus.jsonl": 5760, ...}, sha256={"corpus.jsonl": "8c1f...", ...},
    nats={"one_inference": {"ending_inferred": 0.0, "ending_not_inferred": 1.0986, "thought": 2.7726}, ...})`.
    """

    seed: int
    people: int
    rows: Mapping[str, int]
    sha256: Mapping[str, str]
    nats: Mapping[str, Mapping[str, float]]


def write_world(folder: Path, seed: int, people: int, progress: Progress = lambda done, total: None) -> WorldCard:
    """Writes the files of a world into `folder` and returns their card: for each person 2 questions to train on and 0.5
    to test with, half of them with two hops, and what the families add (`sleuth.cite.world_tool_outputs`,
    `sleuth.think.world_texts`).

    No training question shares a looked-up entity (except towns) or a wording with a test question; no training text
    shares a name or the wording of its ending with a test text. An existing world in `folder` is replaced once the new
    one is complete. Raises SleuthError if the folder holds anything else, or for an invalid number of people.
    """
    if folder.exists() and not (folder / CARD).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SleuthError(f"{folder}: exists and has no {CARD}; name a new or empty folder, or that of a world")
    world = make_world(seed, people)
    passages = count_articles(world)
    counts = {CORPUS: passages} | {
        name: round(QUESTIONS_PER_PERSON[split] * people) for split, name in QUESTIONS.items()
    }
    added: list[WorldFiles] = family.world_files()
    for files in added:
        counts |= files.counts(people)
    steps = passages + sum(counts.values())
    library = Library(world, random.Random(f"library {seed} {people}"), lambda count: progress(count, steps))
    contents: dict[str, Rows] = {CORPUS: _passage_rows(library)}
    for split, name in QUESTIONS.items():
        drawn = draw_questions(world, library, split, random.Random(f"questions {split} {seed} {people}"))
        contents[name] = _question_rows(split, islice(drawn, counts[name]), library)
    for files in added:
        contents |= files.contents(FilesOfWorld(world, library, seed, counts))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as complete:
        partial = {name: complete.enter_context(replacing_file(folder / name)) for name in (CARD, *contents)}
        rows = {partial[name]: rows for name, rows in contents.items()}
        hashes = _write_files(rows, lambda count: progress(passages + count, steps))
        card = WorldCard(
            seed=seed,
            people=people,
            rows=counts,
            sha256=dict(zip(contents, hashes, strict=True)),
            nats={kind: nats for files in added for kind, nats in files.nats.items()},
        )
        partial[CARD].write_text(json.dumps(asdict(card), indent=2) + "\n")
    return card


def draw_questions(world: World, library: Library, split: Split, rng: random.Random) -> Iterator[Question]:
    """Yields endless distinct questions about one split, with one and two hops in turn. Towns belong to both splits; a
    question reaches them only through a person born there."""
    subjects = [name for name in (*world.people, *world.works, *world.firms) if split_of(name) == split]
    asked: set[tuple[str, ...]] = set()
    for paths in cycle((one_hops, two_hops)):
        while True:
            hops = rng.choice([*paths(library, rng.choice(subjects))])
            looked_up = (hops[0].subject, *(hop.relation for hop in hops))
            in_split = all(hop.subject in world.towns or split_of(hop.subject) == split for hop in hops)
            if in_split and looked_up not in asked:
                break
        asked.add(looked_up)
        yield ask(hops, split, rng)


def _passage_rows(library: Library) -> Iterator[dict[str, Any]]:
    for place, article in enumerate(library.articles):
        yield {"id": str(place), "contents": article.contents}


def _question_rows(split: Split, questions: Iterable[Question], library: Library) -> Iterator[dict[str, Any]]:
    for number, question in enumerate(questions):
        yield {
            "id": f"{split}-{number}",
            "question": question.text,
            "golden_answers": [question.answer],
            "type": question.kind,
            "data_source": "world",
            "gold_ids": [library.gold_id(hop) for hop in question.hops],
        }


def _write_files(contents: Mapping[Path, Rows], progress: Callable[[int], None]) -> list[str]:
    """Writes each file row by row and returns their sha256, in order."""
    hashes, done = [], 0
    for path, rows in contents.items():
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for row in rows:
                line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
                done += 1
                if done % REPORT_EVERY == 0:
                    progress(done)
        hashes.append(digest.hexdigest())
    progress(done)
    return hashes
