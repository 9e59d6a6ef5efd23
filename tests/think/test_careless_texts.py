"""Texts with endings that are wrong half of the time."""

from __future__ import annotations

from collections import Counter

import pytest

from sleuth.think.world_noisy_text import ENDINGS, SUBJECTS, CarelessTexts
from sleuth.world.names import split_of


def test_half_of_the_endings_are_right_and_the_others_have_another_subjects_value():
    texts = [*map(CarelessTexts(200, "train", (0,)).text, range(600))]
    right = [text.ending == f" {text.answer}." for text in texts]
    assert sum(right) / 600 == pytest.approx(0.5, abs=0.06)
    for text, is_right in zip(texts, right, strict=True):
        assert text.answer in text.beginning
        assert text.ending[1:-1] in text.beginning
        assert is_right or text.ending[1:-1] != text.answer


def test_the_answer_is_in_the_sentence_about_the_person_asked_about():
    texts = CarelessTexts(200, "train", (0,))
    names = texts.worlds.people
    for index in range(300):
        text = texts.text(index)
        *sentences, last = text.beginning.split(". ")
        [asked] = [name for name in names if name in last]
        [about] = [said for said in sentences if asked in said]
        assert text.answer in about


def test_texts_have_names_of_one_split_and_all_relations_equally_often():
    texts = [*map(CarelessTexts(200, "test", (0,)).text, range(300))]
    assert min(Counter(text.relation for text in texts)[relation] for relation in ENDINGS) > 70
    people = CarelessTexts(200, "test", (0,)).worlds.people
    assert all(split_of(name) == "test" for name in people)
    assert all(text.beginning.count(".") == SUBJECTS for text in texts)


def test_a_text_depends_only_on_key_and_index():
    one, again = CarelessTexts(200, "train", (0,)), CarelessTexts(200, "train", (0,))
    assert [one.text(index) for index in (5, 2)] == [again.text(index) for index in (5, 2)]
    assert one.text(5) != CarelessTexts(200, "train", (1,)).text(5)
