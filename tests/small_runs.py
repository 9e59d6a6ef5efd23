"""Fixtures of a small run: its recipe, a tokenizer, a model and a protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.recipe import Recipe, load_recipe

RECIPE = """\
name = "demo"
model = "models/tiny"
seed = 5

[[stage]]
kind = "grpo"
steps = 100
prompts_per_step = 16
samples_per_prompt = 8
learning_rate = 1e-3
context = 512
data = { questions = "world/train.jsonl" }
env = { kind = "search", dialect = "sleuth", prompt = "plain", index = "world/index" }
reward = [{ kind = "answer" }]
"""


class Recipes:
    """Variants of one recipe: `recipes("stage.0.steps=50")`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(RECIPE, encoding="utf-8")

    def __call__(self, *overrides: str) -> Recipe:
        return load_recipe(self.path, overrides)


@pytest.fixture
def recipes(tmp_path: Path) -> Recipes:
    return Recipes(tmp_path / "demo.toml")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "<eos>": 2}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")


@pytest.fixture(scope="session")
def model() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=3,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            eos_token_id=2,
            pad_token_id=2,
            bos_token_id=None,
        )
    )


@pytest.fixture
def protocol() -> ProtocolCard:
    prompt = "Answer the question.\n{question}\n"
    return ProtocolCard(
        dialect=DIALECTS["sleuth"],
        prompt="plain",
        prompt_text=prompt,
        prompt_sha256=text_sha256(prompt),
        context=512,
        scorer="strict",
        corpus_sha256="ab" * 32,
        sleuth_version="0.1.0",
    )
