"""GRPO of models that are computed the plain way, from a folder of random weights to a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_stages
from emulator.served import emulated_server
from plain_models import FAMILIES, plain_model
from run_files import bytes_of, evaluation, figures, groups, log, weights
from transformers import AutoModelForCausalLM

from sleuth.learn.models import load_model
from sleuth.render import load_tokenizer

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
RECIPE = """
name = "plain"
model = "{folder}/model"
[[stage]]
kind = "grpo"
steps = 3
save_every = 1
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 1e-3
context = 128
loss = {{ beta = 0.01 }}
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", retriever = "empty", turn_tokens = 12 }}
reward = [{{ kind = "python", function = "own_rewards:vowels" }}]
[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", retriever = "empty", turn_tokens = 12 }}
"""
REWARD = """
def vowels(episode):
    text = "".join(segment.text for segment in episode.whole.segments if segment.author == "policy")
    return sum(letter in "aeiou" for letter in text) / (1 + len(text))
"""


@pytest.fixture
def recipe(tmp_path, request) -> Path:
    tokenizer = load_tokenizer(str(BASE))
    tokenizer.save_pretrained(tmp_path / "model")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    plain_model(request.param, len(tokenizer), **ends).save_pretrained(tmp_path / "model")
    rows = [{"id": str(n), "question": f"Who is {n}?", "golden_answers": ["Ada"]} for n in range(4)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prompt.txt").write_text("Question: {question}\n")
    (tmp_path / "own_rewards.py").write_text(REWARD)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path / "recipe.toml"


@pytest.mark.long
@pytest.mark.parametrize("recipe", FAMILIES, indirect=True)
def test_three_steps_move_the_weights_and_a_stopped_run_goes_on_to_the_same_bytes(run, recipe, tmp_path):
    last = run(recipe, tmp_path / "whole")
    steps = figures(tmp_path / "whole")
    assert len(steps) == 3
    for row in steps:
        assert abs(row["sampler_learner_kl"]) < 1e-9
        assert row["loss"] is not None
        assert row["changed_weights_fraction"] > 0.5
        assert row["tokens_computed"] == row["tokens_dense"]
    trained, first = AutoModelForCausalLM.from_pretrained(last), tmp_path / "model"
    assert trained.config.model_type == AutoModelForCausalLM.from_pretrained(first).config.model_type
    assert weights(last) != weights(first)
    assert evaluation(tmp_path / "whole", "trained")["em"]["n"] == 4
    assert "is computed the plain way, updates about" in log(tmp_path / "whole")
    run(recipe, tmp_path / "parts", "stage.0.stop_after=2")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-000002")  # killed before it was saved
    run(recipe, tmp_path / "parts")
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")
    assert groups(tmp_path / "parts") == groups(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["lfm2"], indirect=True)
@pytest.mark.parametrize("lag", [0, 2])
def test_servers_sample_a_plain_model_with_adapters(run, recipe, tmp_path, lag):
    """Alone between updates; merged where turns go on across these."""
    pytest.importorskip("peft")
    model, tokenizer = load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    with emulated_server("vllm", model, tokenizer, max_rank=8) as server:
        lora = 'stage.0.lora={ rank = 4, targets = "all-linear" }'
        last = run(recipe, tmp_path / "run", lora, small_stages.through([server], 0, max_policy_lag=lag))
        assert len(server.engine.adapters) == (1 if lag == 0 else 0)
    steps = figures(tmp_path / "run")
    assert len(steps) == 3
    assert all(abs(row["sampler_learner_kl"]) < 1e-8 for row in steps if not row.get("off_policy_fraction"))
    assert (last / "adapter" / "adapter_model.safetensors").exists()
    assert "weights go through the folder" not in log(tmp_path / "run")
