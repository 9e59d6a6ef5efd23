"""Lessons about what a tool returned: where its words are, and what is said of it with its source."""

from __future__ import annotations

import random
import re

import pytest

from sleuth.data.refiner import snippets_of
from sleuth.recipe.data import TextKind
from sleuth.rewards.citation.claims import tagged
from sleuth.types import Piece
from sleuth.world.citing import NOWHERE, TAGS, words
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer
from sleuth.world.wording import UNANSWERED

COUNT = 200
Lesson = list[Piece]


def lessons(kind: TextKind) -> list[Lesson]:
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


def test_what_is_found_is_told_with_its_place_and_of_the_rest_that_it_is_not_there() -> None:
    told = {True: 0, False: 0}
    for lesson in lessons("citing"):
        texts = {snippet.id: snippet.text for snippet in snippets_of(lesson[0].text)}
        for before, found in taught(lesson):
            if not before.endswith(" is"):
                continue
            subject = before.split(" of ")[-1].removesuffix(" is")
            told[found != NOWHERE] += 1
            if found != NOWHERE:
                value, id_ = re.fullmatch(r" (.+) \[(\d\d)\]", found).groups()  # pyright: ignore[reportOptionalMemberAccess]
                assert subject in texts[id_]
                assert value in texts[id_]
    assert told[True] > told[False] > 0.2 * told[True]


def test_an_answer_cites_where_the_thought_found_it_or_says_that_nothing_answers() -> None:
    for lesson in lessons("citing"):
        for at, piece in enumerate(lesson):
            if piece.author != "teacher" or not lesson[at - 1].text.endswith("<answer>"):
                continue
            opened = max(place for place in range(at) if "Reasoning:" in lesson[place].text)
            found = [known.text for known in lesson[opened:at] if known.author == "teacher"]
            claims = tagged(f"<answer>{piece.text}</answer>").claims
            if NOWHERE in found:
                assert piece.text == UNANSWERED
            else:
                assert [f"[{claim.ids[0]}]" for claim in claims] == [known.rsplit(" ", 1)[1] for known in found]


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_what_a_tool_returned_is_no_lesson_itself(kind: TextKind) -> None:
    """Its names are drawn at random: whoever learned to foretell them would learn noise."""
    assert all(lesson[0].author == "env" and "<tool_output>" in lesson[0].text for lesson in lessons(kind))


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_a_lesson_is_a_function_of_its_number(kind: TextKind) -> None:
    random.seed(1)
    assert lessons(kind)[:20] == lessons(kind)[:20]


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_the_tokenizer_knows_every_word_and_id_of_a_lesson(kind: TextKind) -> None:
    tokenizer = make_tokenizer(2000, words(), TAGS)
    for lesson in lessons(kind)[:50]:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("".join(piece.text for piece in lesson))["input_ids"])
        assert [token for token in tokens if re.fullmatch(r"[A-Za-z0-9]", token) and token != "I"] == []
