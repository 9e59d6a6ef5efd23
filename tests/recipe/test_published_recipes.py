"""The recipes of published systems have the numbers of their sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shipped_recipes import RECIPES, contents_of, value_at

from sleuth.answers.factory import judges_in
from sleuth.answers.suites import SUITES
from sleuth.dialect import dialect_of
from sleuth.recipe import EvaluateRecipe, GrpoRecipe, load_recipe
from sleuth.recipe.sweep import is_sweep
from sleuth.search.dialects import RESEARCH
from sleuth.think.preference_tables import OnlineDpoRecipe

SLIME = "slime, examples/search-r1 and its write-up"
SEARCH_R1 = "Search-R1, scripts v0.2 of arXiv:2503.09516"
REASON = "reason-over-search, phase 1 (v0.1) as its repository has it"
CARD = "the model card of reason-over-search's v0.1"
REFINERS = "the cards of the published 4B refiners"
MUSIQUE = Path("hf://RUC-NLPIR/FlashRAG_datasets/musique/train.jsonl")

TABLE: list[tuple[str, str, str, Any]] = [
    ("search_r1_slime_3b", SLIME, "model", "Qwen/Qwen2.5-3B"),
    ("search_r1_slime_3b", SLIME, "steps", 3_000),
    ("search_r1_slime_3b", SLIME, "prompts_per_step", 32),
    ("search_r1_slime_3b", SLIME, "samples_per_prompt", 8),
    ("search_r1_slime_3b", SLIME, "learning_rate", 1e-6),
    ("search_r1_slime_3b", SLIME, "schedule", "constant"),
    ("search_r1_slime_3b", SLIME, "warmup_steps", 0),
    ("search_r1_slime_3b", SLIME, "betas", (0.9, 0.98)),
    ("search_r1_slime_3b", SLIME, "weight_decay", 0.01),
    ("search_r1_slime_3b", SLIME, "tokens_per_micro_batch", 9_216),
    ("search_r1_slime_3b", SLIME, "sampling.temperature", 1.0),
    ("search_r1_slime_3b", SLIME, "env.dialect", "slime"),
    ("search_r1_slime_3b", SLIME, "env.prompt", "search_r1_base"),
    ("search_r1_slime_3b", SLIME, "env.prompt_role", "user"),
    ("search_r1_slime_3b", SLIME, "env.hint", "search_r1_retry"),
    ("search_r1_slime_3b", SLIME, "env.top_k", 3),
    ("search_r1_slime_3b", SLIME, "env.turns", 2),
    ("search_r1_slime_3b", SLIME, "env.turn_tokens", 512),
    ("search_r1_slime_3b", SLIME, "reward.0.scorer", "slime"),
    ("search_r1_slime_3b", SLIME, "loss.clip_low", 0.2),
    ("search_r1_slime_3b", SLIME, "loss.clip_high", 0.28),
    ("search_r1_slime_3b", SLIME, "loss.kl", "k3"),
    ("search_r1_slime_3b", SLIME, "loss.beta", 0.001),
    ("search_r1_slime_3b", SLIME, "loss.tis_cap", 2.0),
    ("search_r1_grpo_3b", SEARCH_R1, "model", "Qwen/Qwen2.5-3B"),
    ("search_r1_grpo_3b", SEARCH_R1, "steps", 1_005),
    ("search_r1_grpo_3b", SEARCH_R1, "prompts_per_step", 512),
    ("search_r1_grpo_3b", SEARCH_R1, "samples_per_prompt", 5),
    ("search_r1_grpo_3b", SEARCH_R1, "learning_rate", 1e-6),
    ("search_r1_grpo_3b", SEARCH_R1, "warmup_steps", round(0.285 * 1_005)),
    ("search_r1_grpo_3b", SEARCH_R1, "max_grad_norm", 1.0),
    ("search_r1_grpo_3b", SEARCH_R1, "context", 4_096),
    ("search_r1_grpo_3b", SEARCH_R1, "sampling.temperature", 1.0),
    ("search_r1_grpo_3b", SEARCH_R1, "env.dialect", "search_r1"),
    ("search_r1_grpo_3b", SEARCH_R1, "env.top_k", 3),
    ("search_r1_grpo_3b", SEARCH_R1, "env.searches", 4),
    ("search_r1_grpo_3b", SEARCH_R1, "env.turn_tokens", 500),
    ("search_r1_grpo_3b", SEARCH_R1, "env.results_tokens", 500),
    ("search_r1_grpo_3b", SEARCH_R1, "reward.0.scorer", "search_r1"),
    ("search_r1_grpo_3b", SEARCH_R1, "loss.clip_low", 0.2),
    ("search_r1_grpo_3b", SEARCH_R1, "loss.clip_high", 0.2),
    ("search_r1_grpo_3b", SEARCH_R1, "loss.kl", "k3"),
    ("search_r1_grpo_3b", SEARCH_R1, "loss.beta", 0.001),
    ("reason_over_search_0.6b_rules", REASON, "model", "Qwen/Qwen3-0.6B"),
    ("reason_over_search_0.6b_rules", REASON, "steps", 9_968),
    ("reason_over_search_0.6b_rules", REASON, "stop_after", 2_000),
    ("reason_over_search_0.6b_rules", REASON, "prompts_per_step", 4),
    ("reason_over_search_0.6b_rules", REASON, "samples_per_prompt", 3),
    ("reason_over_search_0.6b_rules", REASON, "learning_rate", 1e-6),
    ("reason_over_search_0.6b_rules", REASON, "schedule", "constant"),
    ("reason_over_search_0.6b_rules", REASON, "context", 4_096 + 512),
    ("reason_over_search_0.6b_rules", REASON, "data.questions", MUSIQUE),
    ("reason_over_search_0.6b_rules", REASON, "env.dialect", "research"),
    ("reason_over_search_0.6b_rules", REASON, "env.prompt", "p3_decide_no_ex"),
    ("reason_over_search_0.6b_rules", REASON, "env.prompt_role", "system"),
    ("reason_over_search_0.6b_rules", REASON, "env.template_flags", {"enable_thinking": True}),
    ("reason_over_search_0.6b_rules", REASON, "env.top_k", 5),
    ("reason_over_search_0.6b_rules", REASON, "env.turns", 5),
    ("reason_over_search_0.6b_rules", REASON, "env.results_tokens", 256),
    ("reason_over_search_0.6b_rules", REASON, "env.response_tokens", 4_096),
    ("reason_over_search_0.6b_rules", REASON, "reward.0.scorer", "research"),
    ("reason_over_search_0.6b_rules", REASON, "loss.clip_low", 0.2),
    ("reason_over_search_0.6b_rules", REASON, "loss.clip_high", 0.2),
    ("reason_over_search_0.6b_rules", REASON, "loss.kl", "k3"),
    ("reason_over_search_0.6b_rules", REASON, "loss.beta", 0.001),
    ("reason_over_search_0.6b_card", CARD, "steps", 9_968),
    ("reason_over_search_0.6b_card", CARD, "stop_after", 2_000),
    ("reason_over_search_0.6b_card", CARD, "data.questions", Path("hf://PeterJinGo/nq_hotpotqa_train/train.parquet")),
    ("reason_over_search_0.6b_card", CARD, "env.prompt", "p3_decide_no_ex"),
    ("reason_over_search_0.6b_card", CARD, "env.dialect", "research_card"),
    ("reason_over_search_0.6b_card", CARD, "reward.0.scorer", "strict"),
    ("refiner_0.6b_single_gpu", REFINERS, "steps", 100),
    ("refiner_0.6b_single_gpu", REFINERS, "prompts_per_step", 32),
    ("refiner_0.6b_single_gpu", REFINERS, "samples_per_prompt", 8),
    ("refiner_0.6b_single_gpu", REFINERS, "context", 6_144 + 1_024),
    ("refiner_0.6b_single_gpu", REFINERS, "env.turn_tokens", 1_024),
    ("refiner_0.6b_single_gpu", REFINERS, "env.mode", "answer_only"),
    ("refiner_0.6b_single_gpu", REFINERS, "sampling.temperature", 1.0),
    ("refiner_0.6b_single_gpu", REFINERS, "schedule", "constant"),
    ("refiner_0.6b_single_gpu", REFINERS, "loss.kl", "k3"),
    ("refiner_0.6b_single_gpu", REFINERS, "loss.beta", 0.001),
    ("refiner_4b_rubric", REFINERS, "stop_after", 50),
    ("refiner_4b_rubric", REFINERS, "seed", 42),
    ("refiner_4b_rubric", REFINERS, "prompts_per_step", 32),
    ("refiner_4b_rubric", REFINERS, "samples_per_prompt", 8),
    ("refiner_4b_rubric", REFINERS, "learning_rate", 5e-6),
    ("refiner_4b_rubric", REFINERS, "optimiser", "adamw"),
    ("refiner_4b_rubric", REFINERS, "schedule", "constant"),
    ("refiner_4b_rubric", REFINERS, "context", 6_144 + 1_024),
    ("refiner_4b_rubric", REFINERS, "tokens_per_micro_batch", 8_192),
    ("refiner_4b_rubric", REFINERS, "env.turn_tokens", 1_024),
    ("refiner_4b_rubric", REFINERS, "env.mode", "answer_only"),
    ("refiner_4b_rubric", REFINERS, "sampling.temperature", 1.0),
    ("refiner_4b_rubric", REFINERS, "reward.0.kind", "rubric"),
    ("refiner_4b_rubric", REFINERS, "reward.0.own", True),
    ("refiner_4b_rubric", REFINERS, "reward.0.static", "refiner"),
    ("refiner_4b_rubric", REFINERS, "reward.0.aggregation", "mean_flipped"),
    ("refiner_4b_rubric", REFINERS, "reward.0.sees_evidence", False),
    ("refiner_4b_rubric", REFINERS, "reward.0.weight", 10.0),
    ("refiner_4b_rubric", REFINERS, "reward.0.judge.model", "Qwen/Qwen3.5-35B-A3B"),
    ("refiner_4b_rubric", REFINERS, "reward.1.formula", "dr_tulu"),
    ("refiner_4b_rubric", REFINERS, "reward.1.weight", 10.0 * 0.2),
    ("refiner_4b_rubric", REFINERS, "reward.1.non_stop_penalty", False),
    ("refiner_4b_rubric", REFINERS, "reward.1.format_gate", False),
    ("refiner_4b_rubric", REFINERS, "loss.kl", "k3"),
    ("refiner_4b_rubric", REFINERS, "loss.beta", 0.001),
    ("refiner_4b_balanced", REFINERS, "steps", 100),
    ("refiner_4b_balanced", REFINERS, "stop_after", 100),
    ("refiner_4b_balanced", REFINERS, "env.mode", "answer_only"),
    ("refiner_4b_balanced", REFINERS, "reward.0.weight", 10.0),
    ("refiner_4b_balanced", REFINERS, "reward.1.weight", 10.0 * 0.5),
]
"""(recipe, source, key, value). Keys of the stage that trains, or `model` and `seed`."""


def value_of(recipe: str, key: str) -> Any:
    found = contents_of(recipe)
    if key in ("model", "seed"):
        return found[key]
    [stage] = [stage for stage in found["stage"] if stage["kind"] == "grpo"]
    return value_at(stage, key)


@pytest.mark.parametrize(("recipe", "source", "key", "value"), TABLE)
def test_a_published_recipe_has_the_values_of_its_source(recipe: str, source: str, key: str, value: Any) -> None:
    assert value_of(recipe, key) == value, source


@pytest.mark.parametrize(
    ("arms", "stage", "prompts"),
    [
        ("reason_over_search_0.6b", 1, ("p3_decide_no_ex", "p1_basic_w_ex")),
        ("tiny/reason_over_search", 3, ("research_rules", "research_example")),
    ],
)
def test_the_two_arms_of_reason_over_search_differ_only_in_the_prompt(
    arms: str, stage: int, prompts: tuple[str, str]
) -> None:
    rules, example = (contents_of(f"{arms}_{arm}") for arm in ("rules", "example"))
    assert tuple(arm["stage"][stage]["env"].pop("prompt") for arm in (rules, example)) == prompts
    assert rules == example


def test_the_arm_of_the_card_differs_from_that_of_the_repository_in_what_the_card_says() -> None:
    card, repository = (contents_of(f"reason_over_search_0.6b_{arm}")["stage"][1] for arm in ("card", "rules"))
    for found in (card, repository):
        del found["data"]["questions"], found["env"]["dialect"], found["reward"][0]["scorer"]
    assert card == repository
    assert dialect_of("research_card").information.open == "<information>"
    assert replace(dialect_of("research_card"), name="research", information=RESEARCH.information) == RESEARCH


@pytest.mark.parametrize("arm", ["search_r1_slime_3b", "tiny/search_r1_slime"])
def test_the_arm_with_the_advice_of_slimes_authors_differs_in_the_reward_alone(arm: str) -> None:
    advised, published = contents_of(f"{arm}_format"), contents_of(arm)
    [paid, plain] = [next(s for s in one["stage"] if s["kind"] == "grpo") for one in (advised, published)]
    assert [(part["kind"], part["weight"]) for part in paid["reward"]] == [("answer", 1.0), ("format", 0.2)]
    assert paid.pop("reward")[:1] == plain.pop("reward")
    assert advised == published


def test_the_balanced_refiner_starts_from_the_weights_that_a_user_names() -> None:
    file = RECIPES / "refiner_4b_balanced.toml"
    assert [stage.kind for stage in load_recipe(file).stage] == ["evaluate", "grpo", "evaluate"]
    assert load_recipe(file, ["model=mine"]).model == "mine"
    about = file.read_text().partition("\n\n")[0]
    assert "--set model=FOLDER" in about
    assert "`lihaoxin2020/qwen3-4B-instruct-refiner-sft`" in about


@pytest.mark.parametrize("recipe", ["search_r1_slime_3b", "search_r1_slime_3b_single_gpu"])
def test_slimes_evaluation_asks_every_published_question_once_and_greedily_before_and_after(recipe: str) -> None:
    before, trains, after = load_recipe(RECIPES / f"{recipe}.toml").stage
    assert (trains.kind, before.name, after.name) == ("grpo", "base", "trained")
    for stage in (before, after):
        assert isinstance(stage, EvaluateRecipe)
        assert (stage.temperature, stage.data.per_set, str(stage.data.suite)) == (0.0, None, "nq_hotpotqa")
    assert SUITES["nq_hotpotqa"].questions == {"nq": 3_610, "hotpotqa": 7_405}
    assert SUITES["seven"].asked(None) == 51_713
    assert SUITES["seven"].asked(200) == 6 * 200 + 125


@pytest.mark.parametrize("file", sorted(RECIPES.rglob("*.toml")), ids=lambda file: str(file.relative_to(RECIPES)))
def test_no_recipe_trains_on_the_verdicts_of_a_judge_that_was_not_examined(file: Path) -> None:
    if is_sweep(file):
        return
    for stage in load_recipe(file).stage:
        if isinstance(stage, GrpoRecipe | OnlineDpoRecipe):
            for use in judges_in(stage.reward):
                assert use.judge.least_accuracy is not None, f"{stage.name}: {use.of}"


TWINS = {
    "search_r1_slime": "search_r1_slime_3b",
    "reason_over_search_rules": "reason_over_search_0.6b_rules",
    "reason_over_search_example": "reason_over_search_0.6b_example",
}
SHARED = ("env.dialect", "env.prompt_role", "reward", "loss", "sampling", "betas", "weight_decay", "max_grad_norm")


@pytest.mark.parametrize(("twin", "recipe"), TWINS.items())
def test_a_tiny_twin_has_the_protocol_reward_and_loss_of_the_real_recipe(twin: str, recipe: str) -> None:
    for key in SHARED:
        assert value_of(f"tiny/{twin}", key) == value_of(recipe, key), key
