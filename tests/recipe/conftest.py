from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
name = "demo"
model = "models/tiny"

[[stage]]
kind = "evaluate"
name = "base"
data = { questions = "world/test.jsonl", limit = 600 }

[[stage]]
kind = "grpo"
steps = 100
prompts_per_step = 16
samples_per_prompt = 8
learning_rate = 1e-3
context = 512

[stage.data]
questions = "world/train.jsonl"

[stage.env]
kind = "search"
dialect = "sleuth"
prompt = "plain"
index = "world/index"
turn_tokens = 32

[[stage.reward]]
kind = "answer"
"""

PRETRAINING = """\
name = "base"

[[stage]]
kind = "supervised"
steps = 10
rows_per_step = 4
learning_rate = 0.01

[stage.data]
kind = "world_text"
people = 50
mix = { reading = 1, episode = 2.5 }

[stage.init]
layers = 1
width = 16
heads = 4
kv_heads = 2
head_dim = 4
mlp = 32
context = 64
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file of the test's folder and gives its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def demo(write: Callable[[str, str], Path]) -> Path:
    """A whole recipe: an evaluation, then GRPO."""
    return write("demo.toml", RECIPE)


@pytest.fixture
def pretraining(write: Callable[[str, str], Path]) -> Path:
    """A recipe that begins with random weights."""
    return write("base.toml", PRETRAINING)
