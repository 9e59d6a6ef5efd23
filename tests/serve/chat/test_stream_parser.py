from __future__ import annotations

import re
from itertools import groupby

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sleuth.dialect import DIALECTS
from sleuth.read.dialect import QUOTED
from sleuth.serve.conversation import StreamParser

TURN = "<think>I look.</think>\n<search> Ada <b> Voss</search>"
TEXTS = st.lists(st.sampled_from([*DIALECTS["sleuth"].tags, "a", " < b", "<", "</", "<sea", "rch>", "\n"]), max_size=12)


def told(*turns: list[str], before: str = "\n", dialect: str = "sleuth") -> list[tuple[str, str]]:
    """(part, text) of neighbouring words of a part, of turns that come in pieces."""
    parser, said = StreamParser(DIALECTS[dialect]), []
    for pieces in turns:
        parser.begin(before)
        said += [word for piece in pieces for word in parser.feed(piece)]
        said += parser.end()
    return [(part, "".join(word.text for word in words)) for part, words in groupby(said, key=lambda word: word.part)]


def test_a_turn_is_split_by_its_tags_which_are_dropped() -> None:
    assert told([TURN]) == [("thought", "I look.\n"), ("query", " Ada <b> Voss")]
    assert told(["<answer> Tarn</answer>"]) == [("draft", " Tarn")]
    assert told(["no tag at all"]) == [("thought", "no tag at all")]


@given(texts=TEXTS)
def test_the_result_does_not_depend_on_how_a_turn_is_chunked(texts: list[str]) -> None:
    whole = "".join(texts)
    assert told(list(whole)) == told([whole]) == told(texts)


def test_text_is_emitted_as_soon_as_it_cannot_become_a_tag() -> None:
    parser = StreamParser(DIALECTS["sleuth"])
    parser.begin("")
    assert [[word.text for word in parser.feed(text)] for text in ("so ", "<se", "e>")] == [["so "], [], ["<see>"]]


def test_a_turn_that_begins_inside_a_tag_is_a_query_or_a_thought_from_the_start() -> None:
    assert told([" Ada</search>"], before="Question: who?\n<search>") == [("query", " Ada")]
    assert told(["hm</think><answer>Tarn"], before="<think>\n") == [("thought", "hm"), ("draft", "Tarn")]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_parsed(dialect: str) -> None:
    tags = DIALECTS[dialect]
    turn = f"hm {tags.search.around('Ada')} then {tags.answer.around('Tarn')}"
    assert told(list(turn), dialect=dialect) == [
        ("thought", "hm "),
        ("query", "Ada"),
        ("thought", " then "),
        ("draft", "Tarn"),
    ]


@pytest.mark.parametrize(
    ("turn", "draft"),
    [
        ("<answer> Tarn [, a town by a lake.]</answer>", " Tarn"),
        ("<answer> Tarn\n [, a\ntown]</answer>", " Tarn"),
        ("<answer> Tarn []</answer>", " Tarn"),
        ("<answer> Tarn [a < b </b> <answe]</answer>", " Tarn"),
        ("<answer> Tarn [, a town]", " Tarn"),  # the turn was cut
        ("<answer> Tarn [so] by the lake [Tarn]</answer>", " Tarn [so] by the lake"),
        ("<answer> Tarn [[Tarn]</answer>", " Tarn ["),
        ("<answer> Tarn [Tarn]]</answer>", " Tarn [Tarn]]"),
        ("<answer> Tarn [Tarn] it is</answer>", " Tarn [Tarn] it is"),
        ("<answer> Tarn [, a", " Tarn [, a"),
    ],
)
def test_the_quotation_at_the_end_of_a_draft_is_never_shown(turn: str, draft: str) -> None:
    assert told(list(turn), dialect="reading") == told([turn], dialect="reading") == [("draft", draft)]


def test_a_bracket_is_shown_as_soon_as_it_cannot_begin_the_quotation() -> None:
    parser = StreamParser(DIALECTS["reading"])
    parser.begin("<answer>")
    fed = (" Tarn ", "[so", "] ", "by", " [Tarn", " [", "Ulm", "]", "</answer>")
    assert [[word.text for word in parser.feed(text)] for text in fed] == [
        *([" Tarn"], [], [], [" [so] by"]),
        *([], [" [Tarn"], [], [], []),
    ]


QUOTING = st.lists(st.sampled_from(["a", " ", "\n", "[", "]", "[a", "b]", "<", "<b", "[a b]"]), max_size=10)


@given(texts=QUOTING)
def test_a_draft_is_the_answer_that_the_reward_reads(texts: list[str]) -> None:
    whole = "".join(texts)
    answer = re.search(DIALECTS["reading"].answer_inner or "", whole)
    assume(answer is not None and not QUOTED.fullmatch(whole))
    assert answer is not None
    said = told(["<answer>", *whole, "</answer>"], dialect="reading")
    assert said == told([f"<answer>{whole}</answer>"], dialect="reading")
    assert "".join(text for _, text in said).strip() == answer["text"].strip()
