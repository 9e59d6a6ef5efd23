"""A stage that trains adapters hands on a whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_stages
import torch
from refusals import refused
from run_files import rows
from safetensors.torch import load_file

from sleuth.recipe import load_recipe

pytest.importorskip("peft")
LORA = ("stage.1.lora={ rank = 4, alpha = 8.0 }", "stage.1.probe_prompts=0", "stage.1.learning_rate=5e-3")
BRIEF = (*LORA, "stage.0.data.limit=2", "stage.2.data.limit=2")


def test_the_checkpoint_is_a_whole_model_and_the_policy_that_was_sampled_is_the_one_that_learned(finished, recipe_file):
    last = finished(*BRIEF)
    folder = last.parents[1]
    base = load_file(Path(load_recipe(recipe_file).model) / "model.safetensors")
    saved = load_file(last / "model.safetensors")
    assert saved.keys() == base.keys()
    moved = {name for name in base if not torch.equal(saved[name], base[name])}
    assert moved
    assert all(name.endswith("_proj.weight") for name in moved)
    trained = [row for row in rows(folder) if row["loss"]]
    assert trained
    assert all(row["sampler_learner_kl"] < 1e-8 for row in trained)
    assert (folder / "eval" / "trained.json").exists(), "the next stage begins with it"


def test_with_servers_a_killed_run_continues_to_the_same_adapters(run, recipe_file, tmp_path, servers):
    alone = servers("vllm", max_rank=8, slots=1)  # what else is in a batch moves the last digits
    brief = (*BRIEF, small_stages.through(alone), 'stage.1.lora.targets="all-linear"')
    whole = run(recipe_file, tmp_path / "whole", *brief)
    run(recipe_file, tmp_path / "parts", *brief, "stage.1.stop_after=2")
    resumed = run(recipe_file, tmp_path / "parts", *brief)
    one, other = (load_file(folder / "adapter/adapter_model.safetensors") for folder in (whole, resumed))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-4) for name in one)
    trained = [row for row in rows(tmp_path / "whole") if row["loss"]]
    assert trained
    assert all(abs(row["sampler_learner_kl"]) < 1e-8 for row in trained)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("embedding_learning_rate=1e-3", "embedding_learning_rate has no effect with lora"),
        ("lora.targets=all_linear", 'stage.1.lora.targets = "all_linear": should be a list of layers, or "all-linear"'),
        ("lora.targets=['lm_head']", "stage.1 (grpo): lora.targets: the model has no layer 'lm_head' that can"),
    ],
)
def test_what_lora_cannot_do_is_told_before_the_run(recipe_file, setting, reason):
    assert reason in refused(recipe_file, *LORA, f"stage.1.{setting}")
