"""The same answer, part of an answer, some of its words: each by hand."""

from __future__ import annotations

import pytest

from sleuth.answers.match import sub_match, token_f1


@pytest.mark.parametrize(
    ("given", "golden", "contains"),
    [
        ("in Paris, France", ["Paris"], True),
        ("Paris", ["in Paris, France"], False),
        ("northern", ["no"], True),  # characters, not words: so do Search-R1's descendants
        ("the U.S.A. won", ["Spain", "usa"], True),
        ("New  York", ["new york city", "The New York"], True),
        ("Rome", ["The"], False),  # normalising leaves nothing of it, and nothing is in everything
        ("a", ["The"], True),
        ("", ["Paris"], False),
        ("Paris", [], False),
    ],
)
def test_an_answer_that_contains_a_golden_one_is_a_sub_match(given: str, golden: list[str], contains: bool) -> None:
    assert sub_match(given, golden) is contains


@pytest.mark.parametrize(
    ("given", "golden", "f1"),
    [
        ("Paris", ["paris."], 1.0),
        ("in Paris France", ["Paris"], 0.5),  # precision 1/3, recall 1: 2 x 1/3 / (4/3)
        ("Ada Voss", ["Ada Maria Voss"], 0.8),  # precision 1, recall 2/3: 4/3 / (5/3)
        ("red red blue", ["red green"], 0.4),  # a bag: one red of three words, one of two
        ("Rome", ["Paris", "Rome Italy"], 2 / 3),  # the best of them
        ("the Paris", ["a Paris"], 1.0),
        ("Rome", ["Paris"], 0.0),
        ("", ["Paris"], 0.0),
        ("a", ["The"], 1.0),
        ("Paris", [], 0.0),
        ("Yes.", ["yes"], 1.0),  # yes, no and noanswer match exactly or not at all
        ("yes it is", ["yes"], 0.0),
        ("yes", ["yes it is"], 0.0),
        ("no", ["yes"], 0.0),
        ("no one", ["no"], 0.0),
        ("noanswer", ["noanswer", "Paris"], 1.0),
        ("noanswer given", ["noanswer"], 0.0),
        ("yes", ["no", "yes"], 1.0),
    ],
)
def test_token_f1_is_that_of_the_words_as_bags(given: str, golden: list[str], f1: float) -> None:
    assert token_f1(given, golden) == pytest.approx(f1, abs=1e-12)
