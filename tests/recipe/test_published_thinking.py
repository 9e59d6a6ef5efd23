"""The recipe of the published thinking model has the numbers of its sources."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from shipped_recipes import contents_of, differing

STAGES = tomllib.loads("""
[self-improving] # the released code and config of the 0.6B model
steps = 2_000
prompts_per_step = 16
samples_per_prompt = 16 # its model card
learning_rate = 5e-6
schedule = "cosine"
warmup_steps = 100
weight_decay = 0.1
max_grad_norm = 1.0
data = { prefix_tokens = 384, suffix_tokens = 128, least_tokens = 640, windows = 1 }
sampling.temperature = 1.0
loss = { kind = "dpo", beta = 0.1 } # arXiv:2601.21343
[[self-improving.reward]]
kind = "pairwise"
schedule = "round_robin"
orders = "one"
judge.model = "Qwen/Qwen3-4B-Instruct-2507"

[against_base] # its model card
data.limit = 128
temperature = 0.0

[thinking]
steps = 512
rows_per_step = 16
learning_rate = 5e-6
warmup_steps = 50
weight_decay = 0.1
max_grad_norm = 1.0
source_weight = 1.0 # the paper
data = { row_tokens = 768, limit = 8_192 } # the card of its data set
held_out = { row_tokens = 1_024, limit = 512 }

[rlmt]
steps = 200 # its model card
prompts_per_step = 2
samples_per_prompt = 16
learning_rate = 1e-7
schedule = "cosine"
warmup_steps = 2
weight_decay = 0.0
max_grad_norm = 0.1
data = { suffix_tokens = 128, least_before = 128, least_behind = 64 }
env = { thought_tokens = 48, close = "inserted", suffix_tokens = 128 }
sampling.temperature = 1.0
reward = [{ kind = "suffix", judge = { model = "Qwen/Qwen3-4B-Instruct-2507" } }]
[rlmt.loss]
advantage = "grpo"
normalise = "sequence"
old_logprobs = "learner"
clip_low = 0.2
clip_high = 0.2
kl = "k3"
beta = 0.02

[thoughts]
data.limit = 32
samples = 4
temperature = 1.0
env = { thought_tokens = 48, suffix_tokens = 128 }
""")


def test_thinking_0_6b_has_the_model_and_texts_of_its_sources() -> None:
    recipe = contents_of("thinking_0.6b")
    assert recipe["model"] == "Qwen/Qwen3-0.6B-Base"
    assert recipe["stage"][0]["data"]["texts"] == Path("hf://HuggingFaceFW/fineweb-edu/sample/10BT")


@pytest.mark.parametrize("stage", STAGES)
def test_thinking_0_6b_has_the_values_of_its_sources(stage: str) -> None:
    [found] = [one for one in contents_of("thinking_0.6b")["stage"] if one["name"] == stage]
    assert differing(found, STAGES[stage]) == []


def test_no_stage_trains_on_held_out_texts() -> None:
    recipe = contents_of("thinking_0.6b")
    parts = {stage["name"]: stage["data"]["part"] for stage in recipe["stage"] if "part" in stage.get("data", ())}
    assert parts["self-improving"] != parts["against_base"] == "held_out"
    assert (parts["thinking"], parts["rlmt"], parts["thoughts"]) == ("sft", "rl", "held_out")
    assert parts["gate"] == parts["gate_after"] == "held_out"
    first = recipe["stage"][0]  # no prefix is used in two steps
    assert first["steps"] * first["prompts_per_step"] <= first["data"]["limit"]


def test_the_gain_recipe_shares_four_stages_with_the_published_one_except_for_empty_thoughts() -> None:
    published, ours = (contents_of(name) for name in ("thinking_0.6b", "thinking_0.6b_gain"))
    assert (published["stage"][3]["data"].pop("empty"), ours["stage"][3]["data"].pop("empty")) == (0.0, 0.1)
    assert ours["stage"][:4] == published["stage"][:4]
    stage = ours["stage"][5]
    for gate in (ours["stage"][4], ours["stage"][6]):  # they play what the rewarded stage plays
        assert (gate["env"], gate["reward"], gate["samples"]) == (
            stage["env"],
            stage["reward"],
            stage["samples_per_prompt"],
        )
    assert [reward["kind"] for reward in stage["reward"]] == ["gain"]
    assert (stage["env"]["suffix_tokens"], stage["loss"]["beta"]) == (0, 0.0)
    assert stage["data"]["part"] == "rl"
    assert ours["stage"][7]["data"]["limit"] > published["stage"][7]["data"]["limit"]


def test_the_tiny_twin_has_the_loss_of_the_real_recipe() -> None:
    twin, big = (contents_of(name)["stage"][0] for name in ("tiny/self_improving", "thinking_0.6b"))
    assert twin["loss"] == big["loss"]
    assert twin["sampling"] == big["sampling"]
    assert [part["kind"] for part in twin["reward"]] == [part["kind"] for part in big["reward"]]


def test_continued_pretraining_has_as_many_suffixes_a_step_as_the_pairs_it_is_compared_with() -> None:
    twin, control = (
        contents_of(f"tiny/{name}")["stage"][0] for name in ("self_improving", "self_improving_pretraining")
    )
    assert control["prompts_per_step"] == 2 * twin["prompts_per_step"]
    assert control["steps"] == twin["steps"]


def test_the_gain_twin_differs_from_the_thinking_twin_only_in_its_texts() -> None:
    gain, shown = (contents_of(f"tiny/{name}") for name in ("thinking_gain", "thinking"))
    assert gain["model"] == shown["model"]
    assert gain["stage"][0] | {"data": {}} == shown["stage"][0] | {"data": {}}
    assert [one["stage"][0]["data"]["texts"].name for one in (gain, shown)] == ["hasty_train.jsonl", "text_train.jsonl"]


def test_the_probes_before_and_after_training_are_equal() -> None:
    gain = contents_of("tiny/thinking_gain")
    before, after = (gain["stage"][at] | {"name": ""} for at in (1, 3))
    assert before == after
    assert gain["stage"][2]["data"]["part"] == "rl"


ARMS = {
    "self_improving_pretraining": {'stage.0.loss.kind="original_nll"', "stage.0.prompts_per_step=32"},
    "self_improving_winner": {'stage.0.loss.kind="winner_nll"'},
    "self_improving_flipped": {"stage.0.reward.0.judge.flip=0.15"},
    "thinking_gain_judge": {
        'stage.2.name="judge"',
        'stage.2.reward=[{kind="suffix", judge="ending"}]',
        "stage.2.env.suffix_tokens=8",
        'stage.2.env.stops=["."]',
        "stage.2.loss.constant=48",
    },
    "thinking_gain_shuffled": {"stage.2.reward.0.shuffle=true"},
    "thinking_gain_distilled": {'stage.2.loss.advantage="best"', "stage.2.learning_rate=0.0001"},
    "thinking_gain_short": {"stage.2.steps=75"},
    "thinking_gain_moving": {'stage.2.reward.0.scorer="moving"', "stage.2.reward.0.decay=0.95"},
}
"""Overrides of each arm of a tiny twin. The twin's name is the part before the last underscore."""


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_differs_from_its_twin_only_in_its_overrides(arm: str) -> None:
    twin, _, _ = arm.rpartition("_")
    assert contents_of(f"tiny/{arm}") == contents_of(f"tiny/{twin}", *sorted(ARMS[arm]))
