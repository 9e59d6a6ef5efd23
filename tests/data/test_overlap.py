from __future__ import annotations

import pytest

from sleuth.data.questions import question_overlap
from sleuth.types import Task


def asked(*questions: str) -> list[Task]:
    return [Task(id=str(at), question=question, golden_answers=("x",)) for at, question in enumerate(questions)]


@pytest.mark.parametrize(
    ("trained", "tested"),
    [
        ("where was Ada Voss born?", "Where was ADA VOSS born"),
        ("who  wrote\n\tit ?", "who wrote it?"),
        ("who wrote “The Well-Known” book", 'who wrote "the well known" book?'),
        ("who wrote it\uff1f", "\uff37ho wrote it?"),
        ("where is Orle\u0301ans", "where is Orl\u00e9ans"),
        ("who wrote\u00a0it", "who wrote it"),
    ],
)
def test_case_punctuation_white_space_and_unicode_forms_do_not_hide_an_overlap(trained: str, tested: str) -> None:
    assert question_overlap(asked(trained), asked(tested)) == asked(tested)


@pytest.mark.parametrize(
    ("trained", "tested"),
    [
        ("who wrote it", "who wrote them"),
        ("where is Orleans", "where is Orléans"),
        ("what is 2+2", "what is 2=2"),
        ("who wrote it", "who wrote it first"),
        ("who is a b", "who is ab"),
    ],
)
def test_other_words_are_another_question(trained: str, tested: str) -> None:
    assert question_overlap(asked(trained), asked(tested)) == []
