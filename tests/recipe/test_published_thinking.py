"""The recipe of the published thinking model has the numbers of its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shipped_recipes import contents_of, value_at

CODE = "the released code and config of the 0.6B model"
CARD = "its model card"
PAPER = "arXiv:2601.21343"
SET = "the card of its data set"

TABLE: list[tuple[str, str, str, Any]] = [
    ("self-improving", CARD, "model", "Qwen/Qwen3-0.6B-Base"),
    ("self-improving", CODE, "steps", 2_000),
    ("self-improving", CODE, "prompts_per_step", 4 * 4),
    ("self-improving", CARD, "samples_per_prompt", 16),
    ("self-improving", CODE, "learning_rate", 5e-6),
    ("self-improving", CODE, "schedule", "cosine"),
    ("self-improving", CODE, "warmup_steps", 100),
    ("self-improving", CODE, "weight_decay", 0.1),
    ("self-improving", CODE, "max_grad_norm", 1.0),
    ("self-improving", CARD, "data.texts", Path("hf://HuggingFaceFW/fineweb-edu/sample/10BT")),
    ("self-improving", CODE, "data.prefix_tokens", 384),
    ("self-improving", CODE, "data.suffix_tokens", 128),
    ("self-improving", CODE, "data.least_tokens", 640),
    ("self-improving", CODE, "data.windows", 1),
    ("self-improving", CARD, "sampling.temperature", 1.0),
    ("self-improving", CODE, "reward.0.kind", "pairwise"),
    ("self-improving", CODE, "reward.0.schedule", "round_robin"),
    ("self-improving", CODE, "reward.0.orders", "one"),
    ("self-improving", CODE, "reward.0.judge.model", "Qwen/Qwen3-4B-Instruct-2507"),
    ("self-improving", PAPER, "loss.kind", "dpo"),
    ("self-improving", CODE, "loss.beta", 0.1),
    ("against_base", CARD, "data.limit", 128),
    ("against_base", CARD, "temperature", 0.0),
    ("thinking", CODE, "steps", 512),
    ("thinking", CODE, "rows_per_step", 4 * 4),
    ("thinking", CODE, "learning_rate", 5e-6),
    ("thinking", CODE, "warmup_steps", 50),
    ("thinking", CODE, "weight_decay", 0.1),
    ("thinking", CODE, "max_grad_norm", 1.0),
    ("thinking", PAPER, "source_weight", 1.0),
    ("thinking", CODE, "data.row_tokens", 768),
    ("thinking", SET, "data.limit", 8_192),
    ("thinking", SET, "held_out.limit", 512),
    ("thinking", CODE, "held_out.row_tokens", 1_024),
    ("rlmt", CARD, "steps", 200),
    ("rlmt", CODE, "prompts_per_step", 2),
    ("rlmt", CODE, "samples_per_prompt", 16),
    ("rlmt", CODE, "learning_rate", 1e-7),
    ("rlmt", CODE, "schedule", "cosine"),
    ("rlmt", CODE, "warmup_steps", 2),
    ("rlmt", CODE, "weight_decay", 0.0),
    ("rlmt", CODE, "max_grad_norm", 0.1),
    ("rlmt", CODE, "data.suffix_tokens", 128),
    ("rlmt", CODE, "data.least_before", 128),
    ("rlmt", CODE, "data.least_behind", 64),
    ("rlmt", CODE, "env.thought_tokens", 48),
    ("rlmt", CODE, "env.close", "inserted"),
    ("rlmt", CODE, "env.suffix_tokens", 128),
    ("rlmt", CODE, "sampling.temperature", 1.0),
    ("rlmt", PAPER, "reward.0.kind", "suffix"),
    ("rlmt", CODE, "reward.0.judge.model", "Qwen/Qwen3-4B-Instruct-2507"),
    ("rlmt", CODE, "loss.advantage", "grpo"),
    ("rlmt", CODE, "loss.normalise", "sequence"),
    ("rlmt", CODE, "loss.old_logprobs", "learner"),
    ("rlmt", CODE, "loss.clip_low", 0.2),
    ("rlmt", CODE, "loss.clip_high", 0.2),
    ("rlmt", CODE, "loss.kl", "k3"),
    ("rlmt", CODE, "loss.beta", 0.02),
    ("thoughts", CODE, "data.limit", 32),
    ("thoughts", CODE, "samples", 4),
    ("thoughts", CODE, "temperature", 1.0),
    ("thoughts", CODE, "env.thought_tokens", 48),
    ("thoughts", CODE, "env.suffix_tokens", 128),
]
"""(stage, source, key, value)."""


@pytest.mark.parametrize(("stage", "source", "key", "value"), TABLE)
def test_thinking_0_6b_has_the_values_of_its_sources(stage: str, source: str, key: str, value: Any) -> None:
    recipe = contents_of("thinking_0.6b")
    if key == "model":
        assert recipe["model"] == value
        return
    [found] = [one for one in recipe["stage"] if one["name"] == stage]
    assert value_at(found, key) == value, source


def test_no_stage_trains_on_held_out_texts() -> None:
    recipe = contents_of("thinking_0.6b")
    parts = {stage["name"]: stage["data"]["part"] for stage in recipe["stage"] if "part" in stage.get("data", ())}
    assert parts["self-improving"] != parts["against_base"] == "held_out"
    assert (parts["thinking"], parts["rlmt"], parts["thoughts"]) == ("sft", "rl", "held_out")
    assert parts["gate"] == parts["gate_after"] == "held_out"


def test_no_prefix_is_used_in_two_steps() -> None:
    stage = contents_of("thinking_0.6b")["stage"][0]
    assert stage["steps"] * stage["prompts_per_step"] <= stage["data"]["limit"]


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


# -- the tiny twin -----------------------------------------------------------------------------------------------------


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


# -- tiny thought recipes ------------------------------------------------------------------------------------------


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


# -- arms --------------------------------------------------------------------------------------------------------------

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
