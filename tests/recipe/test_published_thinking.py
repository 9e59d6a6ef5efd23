"""The recipe of the published thinking model has the numbers of its sources."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from folder_hub import FolderHub
from shipped_recipes import RECIPES, contents_of, differing
from verb import sleuth

from sleuth.recipe import load_recipe
from sleuth.think.thoughts import thought_documents
from sleuth.types import Thought

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


def test_the_companion_set_stands_in_the_place_of_a_teacher_in_the_columns_that_its_builder_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "Jarrodbarnes/qwen3-0.6B-interleaved-thinking-data"
    for split, count in (("train", 5), ("validation", 3)):
        file = tmp_path / name / "data" / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([companion_row(split, n) for n in range(count)]), file)
    FolderHub(tmp_path).put(monkeypatch)
    checked = sleuth("check", "texts", f"hf://{name}/train")
    assert checked.exit_code == 0
    assert "texts whose copy with thoughts differs from them, so that a run skips it: 1" in checked.stdout
    recipe = load_recipe(RECIPES / "thinking_0.6b_published.toml")
    stages: dict[str, Any] = {stage.name: stage for stage in recipe.stage}
    assert "annotated" not in stages
    shown = thought_documents(stages["thinking"].data)
    assert [document.id for document in shown] == ["train-1", "train-2", "train-3", "train-4"]  # the first is altered
    assert shown[0].thoughts == (Thought(at=len("Rain 1 falls."), text="so train is wet"),)
    held_out = thought_documents(stages["thinking"].held_out)
    assert [document.id for document in held_out] == ["validation-1", "validation-2"]
    for stage in ("gate", "gate_after", "thoughts"):
        assert stages[stage].data.texts == stages["thinking"].held_out.texts
    assert stages["rlmt"].data.texts == stages["thinking"].data.texts
    ours, theirs = (contents_of(name)["stage"] for name in ("thinking_0.6b", "thinking_0.6b_published"))
    for stage in (*ours, *theirs):
        tables = [stage.get(key) for key in ("data", "held_out") if stage["kind"] not in ("online_dpo", "win_rate")]
        for table in filter(None, tables):
            del table["texts"], table["part"]
    assert list(theirs) == [stage for stage in ours if stage["name"] != "annotated"]


def companion_row(split: str, n: int) -> dict[str, Any]:
    """A row of the companion set; the copy of the first one is another text."""
    raw, copied = f"Rain {n} falls. Go.", f"Rain {n or 'never'} falls."
    return {
        "id": f"{split}-{n}",
        "split": split,
        "source_hash": f"{n:064x}",
        "raw_token_ids": [n, 1, 2],
        "augmented_token_ids": [n, 1, 3, 2],
        "raw_text": raw,
        "augmented_text": f"{copied}<think>so {split} is wet</think> Go.",
        "teacher_model": "qwen3.6-35b-a3b",
        "thought_count": 1,
        "word_coverage": 1.0,
    }


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
}
"""Overrides of each arm of a tiny twin. The twin's name is the part before the last underscore."""


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_differs_from_its_twin_only_in_its_overrides(arm: str) -> None:
    twin, _, _ = arm.rpartition("_")
    assert contents_of(f"tiny/{arm}") == contents_of(f"tiny/{twin}", *sorted(ARMS[arm]))
