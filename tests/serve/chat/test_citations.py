"""Which sentence of a cited passage has the answer, or the quotation."""

from __future__ import annotations

import pytest

from sleuth.serve.conversation import answer_sentence, quoted_sentence

LAST = "In 1890 she left Tarn for Ulm, where Dr. Ines B. Hale of the U.S. taught."
TEXT = f"Ada Voss was born in Tarn. She painted lakes. {LAST}"
SAID = 'He said "It\n is  Tarn." Then (so they say) he left.'
WHICH = "Which town did the painter leave for Ulm?"


@pytest.mark.parametrize(
    ("answer", "text", "sentence"),
    [
        ("Tarn", TEXT, "Ada Voss was born in Tarn."),
        ("the LAKES", TEXT, "She painted lakes."),
        ("Dr. Ines B. Hale", TEXT, LAST),
        ("lakes. In 1890", TEXT, f"She painted lakes. {LAST}"),
        ("Tarn", "\U0001f30a Lake. Ada was born in Tarn.", "Ada was born in Tarn."),  # places are of characters
        ("U.S.", "She moved to the U.S. Later she came back.", "She moved to the U.S."),
        ("Tar", TEXT, None),
        ("the", TEXT, None),
        ("", TEXT, None),
    ],
)
def test_the_sentence_has_the_words_of_the_answer(answer: str, text: str, sentence: str | None) -> None:
    place = answer_sentence(answer, text)
    assert (place and text[slice(*place)]) == sentence


def test_of_several_sentences_it_is_one_that_was_read_with_the_words_of_the_question() -> None:
    assert answer_sentence("Tarn", TEXT, WHICH) == (TEXT.index(LAST), len(TEXT))
    assert answer_sentence("Tarn", TEXT, WHICH, shown=f"[1] Ada | {TEXT[:50]}") == (0, 26)


@pytest.mark.parametrize(
    ("quoted", "text", "sentence"),
    [
        ("Tarn. She painted", TEXT, "Ada Voss was born in Tarn."),  # where it begins
        ("painted\n lakes.", TEXT, "She painted lakes."),
        ("U.S. taught.", TEXT, LAST),  # no sentence ends behind an initial
        ("Tarn", TEXT, "Ada Voss was born in Tarn."),  # the first of two
        ("tarn", TEXT, None),
        ("Tarn for Osk", TEXT, None),
        ("Ada Voss | Ada Voss was", TEXT, None),  # it begins in the title
        ("T.rn", TEXT, None),
        ("It is Tarn.", SAID, SAID[:22]),
        ("(so they", SAID, SAID[24:]),
        ('" Then', SAID, SAID[:22]),  # the mark is between two sentences
    ],
)
def test_the_sentence_is_that_in_which_the_quotation_begins(quoted: str, text: str, sentence: str | None) -> None:
    place = quoted_sentence(quoted, text)
    assert (place and text[slice(*place)]) == sentence
