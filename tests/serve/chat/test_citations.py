"""Which sentence of a cited passage has the answer."""

from __future__ import annotations

import pytest

from sleuth.serve.chat.citations import answer_sentence

LAST = "In 1890 she left Tarn for Ulm, where Dr. Ines B. Hale of the U.S. taught."
TEXT = f"Ada Voss was born in Tarn. She painted lakes. {LAST}"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("Tarn", "Ada Voss was born in Tarn."),
        ("the LAKES", "She painted lakes."),
        ("1890", LAST),
        ("Dr. Ines B. Hale", LAST),
        ("lakes. In 1890", f"She painted lakes. {LAST}"),
        ("Rome", None),
        ("Tar", None),
        ("the", None),
        ("", None),
    ],
)
def test_the_sentence_has_the_words_of_the_answer(answer: str, sentence: str | None) -> None:
    place = answer_sentence(answer, TEXT)
    assert (place and TEXT[slice(*place)]) == sentence


def test_of_several_sentences_it_is_the_one_with_the_words_of_the_question() -> None:
    place = answer_sentence("Tarn", TEXT, "Which town did the painter leave for Ulm?")
    assert place is not None
    assert TEXT[slice(*place)].startswith("In 1890 she left Tarn")


def test_a_sentence_that_the_policy_read_comes_before_one_that_was_cut() -> None:
    place = answer_sentence("Tarn", TEXT, "Which town did the painter leave for Ulm?", shown=f"[1] Ada | {TEXT[:50]}")
    assert place == (0, 26)


def test_places_are_counted_in_characters() -> None:
    text = "\U0001f30a Lake. Ada was born in Tarn."
    assert answer_sentence("Tarn", text) == (8, len(text))


def test_a_sentence_ends_behind_an_abbreviated_country() -> None:
    text = "She moved to the U.S. Later she came back."
    assert answer_sentence("U.S.", text) == (0, 21)
