"""Fixtures of those who learn or compute: a tiny model, and ragged rows for it."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import FAMILIES, VOCABULARY

from sleuth.learn.batch import Row


@pytest.fixture
def make_model():
    """Builds a tiny causal model; the same weights every time for the same family and seed."""

    def make(family: str = "qwen3", seed: int = 0):
        torch.manual_seed(seed)
        return FAMILIES[family]().eval()

    return make


@pytest.fixture
def make_rows():
    """Builds ragged rows in the shape of a search: prompt, policy, retrieved text, policy; siblings share a prompt."""

    def make(rows: int = 7, seed: int = 0) -> list[Row]:
        draw = random.Random(seed)

        prompts = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(2, 6))] for _ in range(3)]

        def row(prompt: list[int]) -> Row:
            spans = [(False, len(prompt)), (True, draw.randint(1, 5))]
            spans += [(False, draw.randint(1, 8)), (True, draw.randint(1, 5))]
            trained = tuple(written for written, length in spans for _ in range(length))
            return Row(
                tokens=(*prompt, *(draw.randrange(VOCABULARY) for _ in trained[len(prompt) :])),
                trained=trained,
                advantage=draw.uniform(-2, 2),
                sampler_logprobs=tuple(-draw.uniform(2.0, 5.0) if written else 0.0 for written in trained),
            )

        return [row(prompts[number % len(prompts)]) for number in range(rows)]

    return make
