"""The four stages of a thinking model on real text, with a small model of random weights: mechanics, and no quality.

Every row of every stage is looked at: each is the source's own text, cut where the recipe says, and whole.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from run_files import groups, rows
from tiny_models import SHAPE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sleuth.data.documents import part_of, read_documents
from sleuth.think.splicing import break_offsets, insert_thoughts
from sleuth.types import Document, Thought

REAL_TEXTS = Path(__file__).parents[2].parent / "shared" / "data" / "midtrain_text.jsonl.gz"
TAGS = ("<think>", "</think>")
RECIPE = """
name = "real"
model = "{model}"
seed = 3

[[stage]]
kind = "online_dpo"
name = "self-improving"
steps = 3
prompts_per_step = 4
samples_per_prompt = 4
learning_rate = 1e-4
data = {{ kind = "text", texts = "{texts}", part = "rl", prefix_tokens = 48, suffix_tokens = 16 }}
reward = [{{ kind = "python", function = "real_lengths:length" }}]

[[stage]]
kind = "supervised"
name = "thinking"
steps = 3
rows_per_step = 4
learning_rate = 1e-4
data = {{ kind = "thoughts", texts = "{thoughts}", part = "sft", row_tokens = 256 }}
held_out = {{ texts = "{thoughts}", part = "held_out", limit = 8 }}

[[stage]]
kind = "grpo"
name = "gain"
steps = 3
prompts_per_step = 3
samples_per_prompt = 4
learning_rate = 1e-4
context = 256
data = {{ kind = "places", texts = "{thoughts}", part = "rl", prefix_tokens = 96, suffix_tokens = 16 }}
env = {{ kind = "thought", thought_tokens = 12 }}
reward = [{{ kind = "gain" }}]
loss = {{ setting = "dr_grpo", constant = 12, old_logprobs = "learner" }}

[[stage]]
kind = "probe"
name = "thoughts"
samples = 2
data = {{ kind = "places", texts = "{thoughts}", part = "held_out", prefix_tokens = 96, suffix_tokens = 16, limit = 8 }}
env = {{ kind = "thought", thought_tokens = 12 }}
"""

pytestmark = pytest.mark.skipif(not REAL_TEXTS.is_file(), reason="needs the real data beside the checkout")


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(read_documents(REAL_TEXTS))


@pytest.fixture(scope="module")
def model(documents, tmp_path_factory) -> Path:
    """Random weights of the shape of Qwen3, and a tokenizer of bytes that was made on these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|end|>", *TAGS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator((document.text for document in documents[:60]), trainer)
    torch.manual_seed(0)
    shape = {**SHAPE, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 1024}
    small = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8, tie_word_embeddings=True, eos_token_id=0))
    folder = tmp_path_factory.mktemp("model")
    small.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def thoughts(documents, tmp_path_factory) -> Path:
    """In the layout of the published set: thoughts in a copy of the text."""
    file = tmp_path_factory.mktemp("thoughts") / "thoughts.jsonl"
    written = []
    for document in documents:
        if any(tag in document.text for tag in TAGS) or not break_offsets(document.text):
            continue
        put = [Thought(at=at, text=" so it goes on") for at in break_offsets(document.text)[1:6:2]]
        row = {"id": document.id, "origin": document.origin, "raw_text": document.text}
        written.append(row | {"augmented_text": insert_thoughts(document.text, put)})
    file.write_text("".join(json.dumps(row) + "\n" for row in written))
    return file


@pytest.mark.slow
def test_four_stages_run_on_real_text_without_a_malformed_row(documents, model, thoughts, run, tmp_path):
    recipe = tmp_path / "real.toml"
    (tmp_path / "real_lengths.py").write_text("def length(episode): return len(episode.trajectory.segments[-1].text)\n")
    recipe.write_text(RECIPE.format(model=model, texts=REAL_TEXTS, thoughts=thoughts))
    run(recipe, tmp_path / "run")
    steps = rows(tmp_path / "run")
    assert [row["stage"] for row in steps] == ["self-improving"] * 3 + ["thinking"] * 3 + ["gain"] * 3
    assert all(math.isfinite(row["loss"]) for row in steps if row["loss"] is not None)
    assert any(row["loss"] is not None for row in steps if row["stage"] == "gain")
    assert all(row["missing_fraction"] == 0 for row in steps if "missing_fraction" in row)
    by_id = {document.id: document for document in documents}
    longest, read = {"self-improving": 48, "gain": 96}, 0
    for step, row in enumerate(steps, start=1):
        for group in groups(tmp_path / "run", step):
            told = group.task.continuation
            assert told is not None
            document = by_id[told.document]
            assert told.prefix.text + told.suffix.text in document.text
            assert part_of(document.origin) == "rl"
            assert 0 < len(told.prefix.tokens) <= longest[row["stage"]]
            assert 0 < len(told.suffix.tokens) <= 16
            assert all(episode.trajectory.stop != "failed" for episode in group.episodes)
            assert not any(tag in told.prefix.text + told.suffix.text for tag in TAGS)
            read += 1
    assert read == 3 * 4 + 3 * 3
    for name in ("thinking_before", "thinking_after", "thoughts"):
        found = (tmp_path / "run" / "eval" / f"{name}.json").read_text()
        assert not re.search(r"NaN|Infinity", found)
