"""Weights that nobody has trained compare the words of a question with those of a passage, and copy."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from sleuth.learn.models import random_model
from sleuth.read.initial_weights import (
    COPYING_HEAD,
    LOOKING_BACK,
    MATCHING,
    SHORTEST,
    begin_with_reading,
    rarity,
    spelling_vectors,
)
from sleuth.recipe import InitRecipe
from sleuth.world.tokens import make_tokenizer

SHAPE = InitRecipe(
    layers=5, width=256, heads=4, kv_heads=4, head_dim=64, mlp=64, context=512, rope_theta=1e7, reading=True
)
SENTENCE = 12
QUESTION = 6


@cache
def words() -> list[str]:
    tokenizer: PreTrainedTokenizerFast = make_tokenizer(200)
    return [str(tokenizer.decode([token])) for token in range(len(tokenizer))]


@cache
def fresh() -> Qwen3ForCausalLM:
    """A new model, whose texts are random words."""
    draw = random.Random(0)
    passages = [[draw.randrange(len(words())) for _ in range(60)] for _ in range(300)]
    model = random_model(SHAPE, make_tokenizer(200), seed=0)
    begin_with_reading(model, words(), passages, seed=0)
    assert isinstance(model, Qwen3ForCausalLM)
    model.set_attn_implementation("eager")
    return model


def asked_again(seed: int) -> tuple[Tensor, list[int]]:
    """A question of six words, a passage of ten sentences of which one has these words among six others, and the
    question again: 6 + 120 + 6 tokens. And where the passage has them."""
    draw = random.Random(seed)
    drawn = draw.sample(range(len(words())), QUESTION + 10 * SENTENCE)
    question, passage = drawn[:QUESTION], drawn[QUESTION:]
    begin = draw.randrange(10) * SENTENCE
    places = sorted(draw.sample(range(begin, begin + SENTENCE), QUESTION))
    for word, place in zip(question, places, strict=True):
        passage[place] = word
    return torch.tensor([[*question, *passage, *question]]), [QUESTION + place for place in places]


@torch.no_grad()
def attention(tokens: Tensor, layer: int, head: int) -> Tensor:
    """(T, T): how much each token attends to each."""
    return fresh()(tokens, output_attentions=True).attentions[layer][0, head]


@pytest.mark.parametrize(("head", "distance"), LOOKING_BACK)
def test_heads_of_the_first_layer_attend_one_and_two_tokens_back(head, distance):
    tokens, _ = asked_again(seed=1)
    weights = attention(tokens, 0, SHAPE.heads + head)
    assert weights.diagonal(-distance).min() > 0.8


@pytest.mark.parametrize(("layer", "head"), MATCHING)
def test_a_word_of_the_question_attends_to_the_same_word_of_the_passage(layer, head):
    """Each word of the second question shares its attention between itself and the two others, and has little left for
    the 129 tokens that are other words. Those of later layers are mixed with what random heads have read."""
    of_passage, of_same = [], []
    for seed in range(5):
        tokens, places = asked_again(seed)
        for number, row in enumerate(attention(tokens, layer, head)[-QUESTION:]):
            here = tokens.shape[1] - QUESTION + number
            of_passage.append(float(row[places[number]]))
            of_same.append(float(row[[number, places[number], here]].sum()))
    same, passage = (0.9, 0.2) if layer == 0 else (0.5, 0.05)  # alike for all 132 tokens, it would be 0.02 and 0.008
    assert sum(of_same) / len(of_same) > same
    assert sum(of_passage) / len(of_passage) > passage


def test_the_sentence_that_shares_words_with_the_question_is_matched_most():
    """By hand: six words of the question stand in one sentence of ten, so it gets all of the matches."""
    for seed in range(5):
        tokens, places = asked_again(seed)
        weights = attention(tokens, 0, 0)[-QUESTION:, QUESTION:-QUESTION].sum(dim=0)  # of the passage's tokens
        by_sentence = weights.view(10, SENTENCE).sum(dim=1)
        right = (places[0] - QUESTION) // SENTENCE
        assert by_sentence.argmax() == right
        assert by_sentence[right] > 0.9 * by_sentence.sum()


@torch.no_grad()
def test_the_copying_head_raises_the_logit_of_the_token_that_it_attends_to():
    model: Any = fresh()
    layer = model.model.layers[-1].self_attn
    embeddings = model.get_input_embeddings().weight
    rows = slice(COPYING_HEAD * SHAPE.head_dim, (COPYING_HEAD + 1) * SHAPE.head_dim)
    read = torch.nn.functional.rms_norm(embeddings, embeddings.shape[1:]) @ layer.v_proj.weight[rows].T
    logits = read @ layer.o_proj.weight[:, rows].T @ embeddings.T
    assert (logits.argmax(dim=1) == torch.arange(len(embeddings))).float().mean() > 0.95


def test_frequent_words_have_short_embeddings():
    passages = [[0, 1], [0, 2], [0, 3]] * 400  # word 0 in all 1,200, words 1 to 3 in 400 each, word 4 in none
    lengths = rarity(passages, 5)
    assert lengths[0] == pytest.approx(SHORTEST)  # log(1200 / 1201) / 6 is below it
    assert lengths[1] == pytest.approx(SHORTEST)  # log(1200 / 401) / 6 = 0.18 too
    assert lengths[4] == pytest.approx(1.0)  # log(1200 / 1) / 6 = 1.18


def test_words_are_near_others_that_are_spelled_alike():
    vectors = torch.nn.functional.normalize(spelling_vectors([" lived", " living", " Lived", " castle", " 1995"], 64))
    assert vectors[0] @ vectors[2] == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > 0.2 > vectors[0] @ vectors[3]
    assert not vectors[4].any()
