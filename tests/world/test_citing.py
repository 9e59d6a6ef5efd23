"""Lessons about what a tool returned: where its words are, and what is said of it with its source."""

from __future__ import annotations

import random
import re

import pytest

from sleuth.data.tool_output import snippets_of
from sleuth.rewards.citation.claims import tagged
from sleuth.types import Piece
from sleuth.world.citing import TAGS, words
from sleuth.world.text import RowKind, TextRows
from sleuth.world.tokens import make_tokenizer
from sleuth.world.wording import UNANSWERED

COUNT = 200
Lesson = list[Piece]


def lessons(kind: RowKind) -> list[Lesson]:
    drawn = TextRows(2000, {kind: 1.0}, (0,))
    return [drawn.row(at) for at in range(COUNT)]


def taught(lesson: Lesson) -> list[tuple[str, str]]:
    """What stands right before each thing that a teacher wrote, and that."""
    return [(lesson[at - 1].text, piece.text) for at, piece in enumerate(lesson) if piece.author == "teacher"]


def test_a_word_is_placed_in_the_one_snippet_that_holds_it() -> None:
    for lesson in lessons("placing"):
        texts = {snippet.id: snippet.text for snippet in snippets_of(lesson[0].text)}
        places = taught(lesson)
        assert places
        for before, id_ in places:
            word = re.escape(before.removesuffix("<snippet id=").strip())
            assert [known for known, text in texts.items() if re.search(rf"\b{word}\b", text)] == [id_]


def test_what_is_told_is_cited_and_of_the_rest_it_is_said_that_nothing_answers() -> None:
    said = [(lesson, *pair) for lesson in lessons("citing") for pair in taught(lesson)]
    for lesson, wanted, answer in said:
        texts = {snippet.id: snippet.text for snippet in snippets_of(lesson[0].text)}
        [claim] = tagged(f"<answer>{answer}</answer>").claims or [None]
        if claim is None:
            assert answer == UNANSWERED
            continue
        names = re.findall(r"[A-Z]\w+|\d{4}", claim.text)
        assert all(name in texts[claim.ids[0]] for name in names)
        subject = re.sub(r".* of (.*)\.\n<answer>", r"\1", wanted.strip("\n"), flags=re.DOTALL)
        assert subject in claim.text
    abstained = sum(answer == UNANSWERED for _, _, answer in said)
    assert 0.05 * len(said) < abstained < 0.3 * len(said)


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_what_a_tool_returned_is_no_lesson_itself(kind: RowKind) -> None:
    """Its names are drawn at random: whoever learned to foretell them would learn noise."""
    assert all(lesson[0].author == "env" and "<tool_output>" in lesson[0].text for lesson in lessons(kind))


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_a_lesson_is_a_function_of_its_number(kind: RowKind) -> None:
    random.seed(1)
    assert lessons(kind)[:20] == lessons(kind)[:20]


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_the_tokenizer_knows_every_word_and_id_of_a_lesson(kind: RowKind) -> None:
    tokenizer = make_tokenizer(2000, words(), TAGS)
    for lesson in lessons(kind)[:50]:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("".join(piece.text for piece in lesson))["input_ids"])
        assert [token for token in tokens if re.fullmatch(r"[A-Za-z0-9]", token) and token != "I"] == []
