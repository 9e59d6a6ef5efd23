"""Texts with thoughts that are right half of the time, and endings that follow from the thoughts."""

from __future__ import annotations

from collections import Counter

import pytest

from sleuth.think.world_chained import CHAINS, ChainedText, ChainedTexts
from sleuth.think.world_endings import GENERIC_THOUGHTS, THOUGHTS
from sleuth.think.world_files import MISTAKEN, RIGHT, HastyTexts

COUNT = 1200


@pytest.fixture(scope="module")
def texts() -> list[ChainedText]:
    drawn = HastyTexts(2000, "train", (0,))
    return [drawn.text(index) for index in range(COUNT)]


def first_fact(thought: str, relation: str) -> dict[str, str]:
    """Subject -> value of the first fact of a thought, if it is of this relation."""
    first = thought.split(" and")[0]
    for wording in THOUGHTS[relation]:
        begins = wording.split("{subject}")[0]
        if first.startswith(begins) and " is " in first:
            subject, value = first.removeprefix(begins).split(" is ")
            return {subject.removeprefix("the town of "): value}
    return {}


def kind_of(text: ChainedText) -> str:
    if text.thought in GENERIC_THOUGHTS:
        return "vain"
    [(subject, value)] = first_fact(text.thought, text.hops[0].relation).items()
    assert subject == text.hops[0].subject
    return "right" if value == text.hops[0].value else "mistaken"


def test_half_of_the_thoughts_are_right_and_a_quarter_is_generic(texts: list[ChainedText]) -> None:
    kinds = Counter(map(kind_of, texts))
    assert kinds["right"] / COUNT == pytest.approx(RIGHT, abs=0.05)
    assert kinds["mistaken"] / COUNT == pytest.approx(MISTAKEN, abs=0.05)


def test_an_ending_follows_from_its_thought_and_is_a_guess_after_a_generic_one(texts: list[ChainedText]) -> None:
    guesses: Counter[bool] = Counter()
    for text in texts:
        ends = {chain[-1].value for chain in text.others}
        kind, named = kind_of(text), text.ending[1:-1]
        assert (named == text.answer) if kind == "right" else named in ends | {text.answer}
        if kind == "mistaken":
            [mistaken] = [chain for chain in text.others if chain[-1].value == named]
            assert all(hop.value in text.thought for hop in mistaken)
            assert all(hop.value not in text.thought for hop in text.hops)
        if kind == "vain":
            guesses[named == text.answer] += 1
    assert guesses[True] / guesses.total() == pytest.approx(1 / CHAINS, abs=0.08)


def test_the_right_answer_does_not_depend_on_the_thought(texts: list[ChainedText]) -> None:
    plain = ChainedTexts(2000, "train", ("hasty", 0))
    for index, text in enumerate(texts[:100]):
        assert (text.beginning, text.answer) == (plain.text(index).beginning, plain.text(index).answer)


def test_a_text_depends_only_on_key_and_index() -> None:
    one, again = HastyTexts(200, "train", (0,)), HastyTexts(200, "train", (0,))
    assert [one.text(index) for index in (5, 2)] == [again.text(index) for index in (5, 2)]
    assert one.text(5) != HastyTexts(200, "train", (1,)).text(5)
