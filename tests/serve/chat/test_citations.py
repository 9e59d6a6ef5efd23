"""Which sentence of a cited passage has the answer, or the quotation."""

from __future__ import annotations

import pytest

from sleuth.serve.conversation import answer_sentence, quoted_sentence

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


@pytest.mark.parametrize(
    ("quoted", "sentence"),
    [
        ("Tarn.", "Ada Voss was born in Tarn."),
        ("Tarn. She painted", "Ada Voss was born in Tarn."),  # where it begins
        ("She painted", "She painted lakes."),
        ("painted\n lakes.", "She painted lakes."),
        ("Tarn for Ulm", LAST),
        ("U.S. taught.", LAST),  # no sentence ends behind an initial
        ("Tarn", "Ada Voss was born in Tarn."),  # the first of two
        ("tarn", None),
        ("Tarn for Osk", None),
        ("Ada Voss | Ada Voss was", None),  # it begins in the title
        ("U.S? taught", None),
        ("T.rn", None),
    ],
)
def test_the_sentence_is_that_in_which_the_quotation_begins(quoted: str, sentence: str | None) -> None:
    place = quoted_sentence(quoted, TEXT)
    assert (place and TEXT[slice(*place)]) == sentence


def test_a_quotation_is_found_across_the_lines_of_a_text_and_behind_a_quotation_mark() -> None:
    text = 'He said "It\n is  Tarn." Then (so they say) he left.'
    assert quoted_sentence("It is Tarn.", text) == (0, 22)
    assert quoted_sentence("(so they", text) == (24, len(text))
    assert quoted_sentence('" Then', text) == (0, 22)  # the mark is between two sentences
