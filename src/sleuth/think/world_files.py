"""The files of a world to think about: texts that follow by inference, careless texts, hasty thoughts, arithmetic.

For each person: `chained` texts and `careless` texts: 4 to train on and 0.5 to test with, of each; `hasty` texts: 4 to
train on; problems of arithmetic, in the layout of MATH-500: 0.05.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sleuth.think.world_chained import INFERENCES, ChainedText, ChainedTexts, ending_of, entropies, thought_of
from sleuth.think.world_endings import GENERIC_THOUGHTS
from sleuth.think.world_noisy_text import CarelessText, CarelessTexts
from sleuth.world.names import Split
from sleuth.world.write_world import FilesOfWorld, Rows, WorldFiles

RIGHT, MISTAKEN = 0.5, 0.25
"""Shares of thoughts that are right, and that mistake one subject for another; the rest are generic."""


class HastyTexts:
    """The texts of `chained` with thoughts that are right half of the time, so that reinforcement learning can improve
    on imitation: a quarter start from the fact of another subject, a quarter fit any text, and the ending follows from
    the thought. Each is a function of (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.texts = ChainedTexts(people, split, ("hasty", *key))
        self.split: Split = split
        self.key = key

    def text(self, index: int) -> ChainedText:
        """Text number `index`; its `hops` and its `answer` are the right ones."""
        text, rng = self.texts.text(index), random.Random(f"hasty {self.split} {self.key} {index}")
        kind = rng.random()
        if kind < RIGHT:
            return text
        if kind < RIGHT + MISTAKEN:
            other, *rest = rng.choice(text.others)
            mistaken = (replace(text.hops[0], value=other.value), *rest)
            return replace(text, thought=thought_of(rng, mistaken), ending=ending_of(mistaken))
        return replace(
            text, thought=rng.choice(GENERIC_THOUGHTS), ending=ending_of(rng.choice([text.hops, *text.others]))
        )


TEXTS: dict[Split, str] = {"train": "text_train.jsonl", "test": "text_test.jsonl"}
CARELESS: dict[Split, str] = {"train": "careless_train.jsonl", "test": "careless_test.jsonl"}
HASTY = "hasty_train.jsonl"
ARITHMETIC = "arithmetic_test.jsonl"
TEXTS_PER_PERSON: dict[Split, float] = {"train": 4.0, "test": 0.5}
"""Texts of `chained`, and of `careless`, for each person."""
PROBLEMS_PER_PERSON = 0.05
"""Problems of arithmetic for each person."""
LARGEST = 20
"""The largest number in a problem; no answer is negative."""


def arithmetic_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` problems, such as `{"unique_id": "arithmetic-0", "problem": "What is 3 + 14?", "answer": "17",
    "subject": "addition"}`; some may be equal."""
    rng = random.Random(f"arithmetic {seed}")
    for number in range(count):
        less, more = sorted(rng.choices(range(LARGEST + 1), k=2))
        adds = rng.random() < 0.5
        yield {
            "unique_id": f"arithmetic-{number}",
            "problem": f"What is {less} + {more}?" if adds else f"What is {more} - {less}?",
            "answer": str(less + more if adds else more - less),
            "subject": "addition" if adds else "subtraction",
        }


def _chained_rows(texts: ChainedTexts | HastyTexts, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        text = texts.text(number)
        thought = {"at": len(text.beginning), "text": text.thought}
        yield _text_row(texts.split, number, text, type=text.kind) | {"thoughts": [thought]}


def _careless_rows(texts: CarelessTexts, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        text = texts.text(number)
        yield _text_row(texts.split, number, text, type=text.relation)


def _text_row(split: Split, number: int, text: ChainedText | CarelessText, type: str) -> dict[str, Any]:
    return {
        "id": f"{split}-{number}",
        "text": text.text,
        "cut": len(text.beginning),
        "golden_answers": [text.answer],
        "type": type,
        "data_source": "world",
    }


def _counts(people: int) -> dict[str, int]:
    counts = {names[split]: round(TEXTS_PER_PERSON[split] * people) for names in (TEXTS, CARELESS) for split in TEXTS}
    return counts | {HASTY: counts[TEXTS["train"]], ARITHMETIC: round(PROBLEMS_PER_PERSON * people)}


def _contents(made: FilesOfWorld) -> dict[str, Rows]:
    people, key, counts = len(made.world.people), (made.seed,), made.counts
    contents: dict[str, Rows] = {
        name: _chained_rows(ChainedTexts(people, split, key), counts[name]) for split, name in TEXTS.items()
    }
    contents |= {
        name: _careless_rows(CarelessTexts(people, split, key), counts[name]) for split, name in CARELESS.items()
    }
    contents[ARITHMETIC] = arithmetic_rows(counts[ARITHMETIC], made.seed)
    contents[HASTY] = _chained_rows(HastyTexts(people, "train", key), counts[HASTY])
    return contents


WORLD_FILES = WorldFiles(
    counts=_counts,
    contents=_contents,
    nats={kind: entropies(inferences) for inferences, kind in INFERENCES.items()},
)
