"""Training rows about a tool output: the snippet of each word, and answers with citations."""

from __future__ import annotations

import random
import re

import pytest

from sleuth.cite.claims import tagged
from sleuth.cite.rows import snippets_of
from sleuth.cite.world_citing import NOWHERE, TAGS, words
from sleuth.types import Piece
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer
from sleuth.world.wording import UNANSWERED

COUNT = 200
Row = list[Piece]


def rows_of(kind: str) -> list[Row]:
    drawn = TextRows(2000, {kind: 1.0}, (0,))
    return [drawn.row(at) for at in range(COUNT)]


def taught(row: Row) -> list[tuple[str, str]]:
    """(text before it, text) of each teacher piece."""
    return [(row[at - 1].text, piece.text) for at, piece in enumerate(row) if piece.author == "teacher"]


def test_a_word_is_placed_in_the_only_snippet_that_contains_it() -> None:
    for row in rows_of("placing"):
        texts = {snippet.id: snippet.text for snippet in snippets_of(row[0].text)}
        places = taught(row)
        assert places
        for before, id_ in places:
            word = re.escape(before.removesuffix("<snippet id=").strip())
            assert [known for known, text in texts.items() if re.search(rf"\b{word}\b", text)] == [id_]


def test_thoughts_cite_stated_facts_and_say_of_others_that_they_are_missing() -> None:
    counts = {True: 0, False: 0}
    for row in rows_of("citing"):
        texts = {snippet.id: snippet.text for snippet in snippets_of(row[0].text)}
        for before, found in taught(row):
            if not before.endswith(" is"):
                continue
            subject = before.split(" of ")[-1].removesuffix(" is")
            counts[found != NOWHERE] += 1
            if found != NOWHERE:
                value, id_ = re.fullmatch(r" (.+) \[(\d\d)\]", found).groups()  # pyright: ignore[reportOptionalMemberAccess]
                assert subject in texts[id_]
                assert value in texts[id_]
    assert counts[True] > counts[False] > 0.2 * counts[True]


def test_an_answer_cites_the_snippet_of_the_thought_or_abstains() -> None:
    for row in rows_of("citing"):
        for at, piece in enumerate(row):
            if piece.author != "teacher" or not row[at - 1].text.endswith("<answer>"):
                continue
            opened = max(place for place in range(at) if "Reasoning:" in row[place].text)
            found = [known.text for known in row[opened:at] if known.author == "teacher"]
            claims = tagged(f"<answer>{piece.text}</answer>").claims
            if NOWHERE in found:
                assert piece.text == UNANSWERED
            else:
                assert [f"[{claim.ids[0]}]" for claim in claims] == [known.rsplit(" ", 1)[1] for known in found]


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_the_tool_output_is_not_trained_on(kind: str) -> None:
    """Its names are random, so that predicting them would be learning noise."""
    assert all(row[0].author == "env" and "<tool_output>" in row[0].text for row in rows_of(kind))


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_a_row_depends_only_on_its_index(kind: str) -> None:
    random.seed(1)
    assert rows_of(kind)[:20] == rows_of(kind)[:20]


@pytest.mark.parametrize("kind", ["placing", "citing"])
def test_the_tokenizer_knows_every_word_and_id_of_a_row(kind: str) -> None:
    tokenizer = make_tokenizer(2000, words(), TAGS)
    for row in rows_of(kind)[:50]:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("".join(piece.text for piece in row))["input_ids"])
        assert [token for token in tokens if re.fullmatch(r"[A-Za-z0-9]", token) and token != "I"] == []
