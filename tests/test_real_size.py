"""Whole steps with models of real size and random weights, on a CPU."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
WORDS = 151_936
SHAPES = {
    "0.6B": {"hidden_size": 1_024, "intermediate_size": 3_072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B, two layers": {
        "hidden_size": 2_560,
        "intermediate_size": 9_728,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
    },
}
MOST_BYTES = 18 * 10**9
REWARD = '''
def parity(episode):
    """Differs between siblings, so that there is something to learn."""
    return float(episode.whole.segments[-1].tokens[-1] % 2)
'''
RECIPE = """
name = "real_size"
model = "{model}"
dtype = "float32"
device = "cpu"

[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 1e-6
warmup_steps = 0
gradient_checkpointing = true
tokens_per_micro_batch = 1024
context = 512
save_every = 1
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 64 }}
reward = [{{ kind = "python", function = "parity:parity" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 4 }}
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_search_step_of_a_model_of_real_size_fits_two_cores_and_18_gigabytes(
    world: Path, tmp_path: Path, shape: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "tiny-base")
    config = Qwen3Config(
        vocab_size=WORDS,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        **SHAPES[shape],
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "parity.py").write_text(REWARD)
    recipe = tmp_path / "real_size.toml"
    recipe.write_text(RECIPE.format(model=tmp_path / "model", world=world))
    command = [sys.executable, "-m", "sleuth", "train", str(recipe), "--run", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1_024
    print(f"{shape}: {peak / 1e9:.1f} GB")
    assert peak < MOST_BYTES
    [row] = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["loss"] is not None
    assert row["sampler_learner_kl"] < 1e-6  # fp32: sampler and learner agree on every token
    assert len(json.loads((tmp_path / "run" / "eval" / "trained.json").read_text())["records"]) == 4
