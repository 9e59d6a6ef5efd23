"""The recipes of published systems have the numbers of their sources."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folder_hub import FolderHub
from shipped_recipes import RECIPES, contents_of, differing
from verb import sleuth

from sleuth.answers.factory import answer_scorer_of, judges_in
from sleuth.answers.suites import SUITES
from sleuth.data.questions import select_tasks
from sleuth.dialect import dialect_of
from sleuth.recipe import EvaluateRecipe, GrpoRecipe, load_recipe
from sleuth.recipe.data import QuestionsRecipe
from sleuth.recipe.sweep import is_sweep
from sleuth.search.dialects import RESEARCH
from sleuth.think.preference_tables import OnlineDpoRecipe
from sleuth.types import SleuthError

PUBLISHED = tomllib.loads("""
[search_r1_slime_3b] # slime, examples/search-r1 and its write-up
model = "Qwen/Qwen2.5-3B"
steps = 3_000
prompts_per_step = 32
samples_per_prompt = 8
learning_rate = 1e-6
schedule = "constant"
warmup_steps = 0
betas = [0.9, 0.98]
weight_decay = 0.01
tokens_per_micro_batch = 9_216
sampling.temperature = 1.0
reward = [{ scorer = "slime" }]
loss = { clip_low = 0.2, clip_high = 0.28, kl = "k3", beta = 0.001, tis_cap = 2.0 }
[search_r1_slime_3b.env]
dialect = "slime"
prompt = "search_r1_base"
prompt_role = "user"
hint = "search_r1_retry"
top_k = 3
turns = 2
turn_tokens = 512

[search_r1_grpo_3b] # Search-R1, scripts v0.2 of arXiv:2503.09516
model = "Qwen/Qwen2.5-3B"
steps = 1_005
prompts_per_step = 512
samples_per_prompt = 5
learning_rate = 1e-6
warmup_steps = 286 # 0.285 of them
max_grad_norm = 1.0
context = 4_096
sampling.temperature = 1.0
env = { dialect = "search_r1", top_k = 3, searches = 4, turn_tokens = 500, results_tokens = 500 }
reward = [{ scorer = "search_r1" }]
loss = { clip_low = 0.2, clip_high = 0.2, kl = "k3", beta = 0.001 }

["reason_over_search_0.6b_rules"] # reason-over-search, phase 1 (v0.1) as its repository has it
model = "Qwen/Qwen3-0.6B"
steps = 9_968
stop_after = 2_000
prompts_per_step = 4
samples_per_prompt = 3
learning_rate = 1e-6
schedule = "constant"
context = 4_608 # 4,096 of the response
data.questions = "hf://RUC-NLPIR/FlashRAG_datasets/musique/train.jsonl"
reward = [{ scorer = "research" }]
loss = { clip_low = 0.2, clip_high = 0.2, kl = "k3", beta = 0.001 }
["reason_over_search_0.6b_rules".env]
dialect = "research"
prompt = "p3_decide_no_ex"
prompt_role = "system"
template_flags = { enable_thinking = true }
top_k = 5
turns = 5
results_tokens = 256
response_tokens = 4_096

["reason_over_search_0.6b_card"] # the model card of reason-over-search's v0.1
steps = 9_968
stop_after = 2_000
data.questions = "hf://PeterJinGo/nq_hotpotqa_train/train.parquet"
env = { prompt = "p3_decide_no_ex", dialect = "research_card" }
reward = [{ scorer = "strict" }]

["reason_over_search_0.6b_card_example"] # the same card, on its companion v0
model = "Qwen/Qwen3-0.6B"
steps = 9_968
data.questions = "hf://PeterJinGo/nq_hotpotqa_train/train.parquet"
env = { prompt = "p1_basic_w_ex", dialect = "research_card" }
reward = [{ scorer = "strict" }]

["refiner_0.6b_single_gpu"] # the cards of the published 4B refiners
steps = 100
prompts_per_step = 32
samples_per_prompt = 8
context = 7_168 # 6,144 + 1,024
env = { turn_tokens = 1_024, mode = "answer_only" }
sampling.temperature = 1.0
schedule = "constant"
loss = { kl = "k3", beta = 0.001 }

[refiner_4b_rubric] # the cards of the published 4B refiners
stop_after = 50
seed = 42
prompts_per_step = 32
samples_per_prompt = 8
learning_rate = 5e-6
optimiser = "adamw"
schedule = "constant"
context = 7_168 # 6,144 + 1,024
tokens_per_micro_batch = 8_192
env = { turn_tokens = 1_024, mode = "answer_only" }
sampling.temperature = 1.0
loss = { kl = "k3", beta = 0.001 }
[[refiner_4b_rubric.reward]]
kind = "rubric"
own = true
static = "refiner"
aggregation = "mean_flipped"
sees_evidence = false
weight = 10.0
judge.model = "Qwen/Qwen3.5-35B-A3B"
[[refiner_4b_rubric.reward]]
formula = "dr_tulu"
weight = 2.0 # 0.2 of the first
non_stop_penalty = false
format_gate = false

[refiner_4b_rubric_published] # its card
model = "lihaoxin2020/qwen3-4b-refiner-gpt54-ep2"
steps = 100
stop_after = 50
seed = 42
prompts_per_step = 32
samples_per_prompt = 8
learning_rate = 5e-6
schedule = "constant"
context = 7_168
tokens_per_micro_batch = 8_192
data = { questions = "hf://lihaoxin2020/rl_hard_gpt5_sft_gpt54rubric/train", ask_with = "prompt" }
env = { turn_tokens = 1_024, mode = "answer_only", prompt = "bare", prompt_role = "user" }
sampling.temperature = 1.0
loss = { kl = "k3", beta = 0.001 }
[[refiner_4b_rubric_published.reward]]
own = true
static = "refiner"
weight = 10.0
judge.model = "Qwen/Qwen3.5-35B-A3B"
[[refiner_4b_rubric_published.reward]]
weight = 2.0

[refiner_4b_balanced_published] # its card
model = "lihaoxin2020/qwen3-4B-instruct-refiner-sft"
stop_after = 100
data = { questions = "hf://lihaoxin2020/refiner_rl/train", ask_with = "prompt" }
env = { turn_tokens = 1_024, mode = "answer_only", prompt = "bare" }
tokens_per_micro_batch = 8_192
reward = [{ weight = 10.0, judge = { model = "Qwen/Qwen3.5-35B-A3B" } }, { weight = 5.0 }]

[refiner_4b_balanced] # the cards of the published 4B refiners
steps = 100
stop_after = 100
env.mode = "answer_only"
reward = [{ weight = 10.0 }, { weight = 5.0 }]
""")
"""Keys of the stage that trains, or `model` and `seed`, by recipe."""


def trained(recipe: str) -> dict[str, Any]:
    """The stage of a recipe that trains, with the recipe's `model` and `seed`."""
    found = contents_of(recipe)
    [stage] = [stage for stage in found["stage"] if stage["kind"] == "grpo"]
    return stage | {key: found[key] for key in ("model", "seed")}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_published_recipe_has_the_values_of_its_source(recipe: str) -> None:
    assert differing(trained(recipe), PUBLISHED[recipe]) == []


@pytest.mark.parametrize(
    ("arms", "stage", "prompts"),
    [
        (("0.6b_rules", "0.6b_example"), 1, ("p3_decide_no_ex", "p1_basic_w_ex")),
        (("0.6b_card", "0.6b_card_example"), 1, ("p3_decide_no_ex", "p1_basic_w_ex")),
        (("rules", "example"), 3, ("research_rules", "research_example")),
    ],
)
def test_the_two_arms_of_reason_over_search_differ_only_in_the_prompt(
    arms: tuple[str, str], stage: int, prompts: tuple[str, str]
) -> None:
    folder = "" if arms[0].startswith("0.6b") else "tiny/"
    rules, example = (contents_of(f"{folder}reason_over_search_{arm}") for arm in arms)
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


@pytest.mark.parametrize(
    ("arm", "model", "prompt"),
    [
        ("rules", "pantomiman/Qwen3-0.6B-v0.1", "p3_decide_no_ex"),
        ("example", "pantomiman/Qwen3-0.6B-v0", "p1_basic_w_ex"),
    ],
)
def test_a_released_checkpoint_is_asked_as_its_arm_of_the_card_asks_its_own(arm: str, model: str, prompt: str) -> None:
    released = load_recipe(RECIPES / f"reason_over_search_0.6b_released_{arm}.toml")
    ours = load_recipe(RECIPES / f"reason_over_search_0.6b_card{'' if arm == 'rules' else '_example'}.toml")
    [asked] = released.stage
    assert (released.model, released.card, released.dtype) == (model, ours.card, ours.dtype)
    assert released.env_and_context(0) == ours.env_and_context(2)
    assert getattr(released.env_and_context(0)[0], "prompt", None) == prompt
    assert isinstance(asked, EvaluateRecipe)
    assert asked.model_copy(update={"name": "trained", "env": None, "context": None}) == ours.stage[2]
    assert answer_scorer_of(released.rewards_for(0)) == answer_scorer_of(ours.rewards_for(2))


MESSAGE = "Refine.\n<tool_output>\n<snippet id=a1>Ada Voss was born in Tarn.</snippet>\n</tool_output>"
RUBRICS = {
    "positive_rubrics": [{"title": "Birthplace", "description": "Names Tarn."}],
    "negative_rubrics": [{"title": "Padding", "description": "Tells of the sea."}],
}


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        ("refiner_4b_rubric_published", "lihaoxin2020/rl_hard_gpt5_sft_gpt54rubric"),
        ("refiner_4b_balanced_published", "lihaoxin2020/refiner_rl"),
    ],
)
def test_a_published_refiner_reads_the_published_rows_and_trains_on_none_that_it_asks(
    recipe: str, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / rows / "data" / "train-00000-of-00001.jsonl"
    file.parent.mkdir(parents=True)
    with file.open("w") as lines:
        for n in range(503):
            messages = [{"role": "user", "content": f"{n}: {MESSAGE}"}, {"role": "assistant", "content": "Tarn."}]
            row = {"conversations": messages, "metadata": {"sample_id": f"s{n}"}, "rubrics": json.dumps(RUBRICS)}
            lines.write(json.dumps(row) + "\n")
    FolderHub(tmp_path).put(monkeypatch)
    assert sleuth("check", "data", f"hf://{rows}/train").exit_code == 0
    before, trains, after = load_recipe(RECIPES / f"{recipe}.toml").stage
    assert isinstance(trains, GrpoRecipe)
    assert isinstance(trains.data, QuestionsRecipe)
    taught = select_tasks(trains.data)
    assert [task.id for task in taught] == ["s500", "s501", "s502"]
    assert taught[0].prompt == f"500: {MESSAGE}"
    assert [(rubric.title, rubric.wanted) for rubric in taught[0].rubrics] == [("Birthplace", True), ("Padding", False)]
    for stage in (before, after):
        assert isinstance(stage, EvaluateRecipe)
        assert [task.id for task in select_tasks(stage.data)] == [f"s{n}" for n in range(500)]
    with pytest.raises(SleuthError, match=r"train: has 503 questions, and data\.skip = 503 leaves none$"):
        select_tasks(trains.data.model_copy(update={"skip": 503}))
    arm, published = (contents_of(name) for name in (recipe.removesuffix("_published"), recipe))
    published["stage"] = [stage | {"data": {}} for stage in published["stage"]]
    arm["stage"] = [stage | {"data": {}} for stage in arm["stage"] if stage["name"] not in ("accepted", "taught")]
    assert (published["stage"][1]["env"].pop("prompt"), arm["stage"][1]["env"].pop("prompt")) == ("bare", "refine")
    assert published | {"model": ""} == arm | {"model": ""}


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
SHARED = ("reward", "loss", "sampling", "betas", "weight_decay", "max_grad_norm")


@pytest.mark.parametrize(("twin", "recipe"), TWINS.items())
def test_a_tiny_twin_has_the_protocol_reward_and_loss_of_the_real_recipe(twin: str, recipe: str) -> None:
    ours, theirs = trained(f"tiny/{twin}"), trained(recipe)
    assert {key: ours[key] for key in SHARED} == {key: theirs[key] for key in SHARED}
    assert all(ours["env"][key] == theirs["env"][key] for key in ("dialect", "prompt_role"))
