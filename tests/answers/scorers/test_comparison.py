"""Where the score depends on who is asked."""

from __future__ import annotations

from sleuth.answers.scorers.cases import disagreement_examples

CASES = [
    {"a": 1.0, "b": 1.0, "c": None},
    {"a": 1.0, "b": 0.0, "c": 0.0},
    {"a": 0.2 + 0.1, "b": 0.3, "c": 0.3},
    {"a": 0.0, "b": 1.0, "c": None},
    {"a": 0.0, "b": 1.0, "c": None},
]


def test_one_case_of_every_kind_of_disagreement_is_told_the_commonest_first() -> None:
    assert disagreement_examples(CASES) == [3, 1]
