"""The control of a reader answers from the sentence that shares most with the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.answers.match import exact_match
from sleuth.read.exam import window_answer
from sleuth.read.texts import ReadingRecipe, read_reading_texts

DATA = Path(__file__).parents[3] / "shared" / "data"
TEXT = (
    "Ada Voss was born in Tarn in 1912. Her brother Emil opened a shop in Kolm in 1931. The shop sold clocks. "
    "In 1950 the painter Rufus Hale bought a boat."
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who bought a boat?", "Rufus Hale"),
        ("Who was born in Tarn?", "Ada Voss"),
        ("What year was Ada Voss born in Tarn?", "1912"),
        ("In what year did the painter Rufus Hale buy a boat?", "1950"),
    ],
)
def test_the_span_nearest_to_the_words_of_the_question_is_the_answer(question, answer):
    assert window_answer(question, TEXT) == answer


def test_a_text_without_candidates_has_no_answer():
    assert window_answer("Who was it?", "it rained all day") == ""


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not on this machine")
def test_the_control_is_right_on_a_fifth_of_the_held_out_questions():
    texts = read_reading_texts(
        ReadingRecipe(
            kind="reading",
            questions=DATA / "reading_train.jsonl.gz",
            passages=(DATA / "reading_corpus.jsonl.gz",),
            held_out=("Harvard University", "Buddhism"),
        )
    )
    right = [exact_match(window_answer(one.question, one.passage.text), one.answers) for one in texts.held_out]
    assert len(right) > 500
    assert 0.12 < sum(right) / len(right) < 0.28
