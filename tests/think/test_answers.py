"""Answers of problems: where they stand in a text, and which are the same."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.think.problems import boxed, extract, number_of, same_answer, spelling


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}, surely", "boxed", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", "boxed", "2"),
        (r"\boxed{1} and \boxed{2", "boxed", "1"),  # the second is never closed
        (r"the answer is 7", "boxed", None),
        (r"\fbox{3}", "boxed", "3"),
        (r"\boxed{}", "boxed", None),
        ("first 5, then 1,200.", "number", "1,200"),
        ("#### 72\nProblem 9", "number", "72"),
        (r"#### 72 but \boxed{73}", "number", "73"),
        ("none at all", "number", None),
        (r"\boxed{\text{(D)}}", "choice", "D"),
        (r"\boxed{B}", "choice", "B"),
        (r"\boxed{Because}", "choice", None),
        ("The answer is (C).", "choice", "C"),
        ("Answer: **A**", "choice", "A"),
        ("A man has an answer in mind", "choice", None),
    ],
)
def test_an_answer_is_where_its_form_says(text: str, form, answer: str | None) -> None:
    assert extract(text, form) == answer


@pytest.mark.parametrize(
    ("given_", "golden"),
    [
        (r"\frac12", "0.5"),
        (r"\dfrac{1}{2}", "1/2"),
        (r"-\frac{3}{4}", "-0.75"),
        ("1,234", "1234"),
        ("12 apples", "12"),
        (r"\$18", "18"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        ("3.0", "3"),
        (r"1.5\times10^{3}", "1500"),
        ("x = 5", "5"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"\text{east}", "east"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"2\cdot x", r"2\times x"),
    ],
)
def test_one_answer_may_be_spelled_in_two_ways(given_: str, golden: str) -> None:
    assert same_answer(given_, golden)
    assert same_answer(golden, given_)


@pytest.mark.parametrize(
    ("given_", "golden"),
    [("2x", "x+x"), ("1", "-1"), ("(1,2)", "(2,1)"), ("0.333", "1/3"), ("1/0", "1"), ("", "0"), (r"\frac{1}{0}", "0")],
)
def test_other_answers_are_others(given_: str, golden: str) -> None:
    assert not same_answer(given_, golden)


@given(st.fractions(max_denominator=10_000))
def test_every_fraction_is_read_as_itself(value: Fraction) -> None:
    sign = "-" if value < 0 else ""
    written = rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert number_of(spelling(written)) == value
    assert number_of(f"{value.numerator}/{value.denominator}") == value


@given(st.text(max_size=60))
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    boxed(text)
    for form in ("number", "boxed", "choice"):
        extract(text, form)
    assert same_answer(text, text)
    same_answer(text, "1", several=True)
