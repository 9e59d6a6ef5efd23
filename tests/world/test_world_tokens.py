from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from sleuth.dialect import DIALECTS
from sleuth.world import names
from sleuth.world.names import words_for
from sleuth.world.tokens import END, make_tokenizer

TOKENIZER = make_tokenizer(200)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(2000)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_encoded_without_loss(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text


def test_each_word_of_the_world_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    words = words_for(2000)
    lists = (words.first, words.family, words.places, names.REGIONS, names.PROFESSIONS, names.KINDS, names.FIRMS)
    for word in (word for group in (*lists, names.ADJECTIVES, names.NOUNS, names.YEARS) for word in group):
        assert len(tokenizer.encode(f" {word}")) == 1, word


def test_each_tag_and_the_end_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    for tag in (END, *DIALECTS["sleuth"].tags):
        ids = tokenizer.encode(f" Ada{tag} Ada")
        assert tokenizer.convert_ids_to_tokens(ids).count(tag) == 1


def test_words_of_extra_texts_become_tokens() -> None:
    assert len(make_tokenizer(200, ["zebra crossing"]).encode("zebra crossing")) == 2
    assert len(TOKENIZER.encode("zebra crossing")) > 2
