"""Whether a recipe fits a card, by arithmetic alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import line_of
from tiny_models import FAMILIES

from sleuth.cli.plan import COLUMNS
from sleuth.host.hardware import CARDS, read_cards
from sleuth.kernels.card_pass import PAGE
from sleuth.learn.models import random_model
from sleuth.plan.fit import CardPlan, plan_for_cards
from sleuth.plan.memory import CPU, CUDA, LearnerMemory, Passes, total
from sleuth.plan.phases import Phase, played_by
from sleuth.plan.shapes import PUBLISHED, ModelShape, random_shape, read_shape, shape_of
from sleuth.recipe import Recipe, SupervisedRecipe, WorldTextRecipe, load_recipe
from sleuth.recipe.training import LoraRecipe
from sleuth.search.tables import HintRecipe, WarmStartRecipe
from sleuth.types import SleuthError
from sleuth.world.text import make_text_tokenizer

RECIPE = """
name = "planned"
model = "{model}"
dtype = "bfloat16"

[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "q.jsonl", limit = 100 }}

[[stage]]
kind = "grpo"
steps = 100
prompts_per_step = 16
samples_per_prompt = 8
learning_rate = 1e-6
tokens_per_micro_batch = 8192
context = 4096
data = {{ questions = "q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", retriever = "empty", turn_tokens = 256 }}
reward = [{{ kind = "answer" }}]
loss = {{ beta = 0.001 }}
"""


def test_the_plan_has_the_constants_of_engine_and_learner() -> None:
    from sleuth.engines.local.engine import CPU_FORWARD_TOKENS, CUDA_FORWARD_TOKENS
    from sleuth.kernels import vocabulary

    assert (CPU.prefill, CUDA.prefill) == (CPU_FORWARD_TOKENS, CUDA_FORWARD_TOKENS)
    for words in (1_000, 16_384, 151_936):
        for device in (CPU, CUDA):
            assert device.rows(words) == vocabulary.chunking_for(torch.device(device.name), words).rows


def test_a_warm_start_plays_within_the_cache_of_the_stage_after_it(make_recipe) -> None:
    recipe = make_recipe("Qwen3-4B", "stage.1.cache_memory=2GB")
    warm = WarmStartRecipe(
        kind="warm_start", hint=HintRecipe(prompt="search_example"), prompts=8, steps=1, learning_rate=1e-4
    )
    played = played_by(recipe.model_copy(update={"stage": (warm, *recipe.stage)}), 0, 1)
    assert played is not None
    assert played.cache_memory == "2GB"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("[]", "is not a JSON object"),
        ('{"text_config": "none"}', "text_config = 'none' in its config: should be an object"),
        ('{"num_attention_heads": 0, "head_dim": "x"}', "and no num_attention_heads and no"),
        (
            '{"hidden_size": 8, "vocab_size": 9, "num_hidden_layers": 1}',
            "its config has no num_attention_heads and no intermediate_size",
        ),
        (json.dumps(PUBLISHED["Qwen3-0.6B"] | {"num_experts": 8}), "no mixtures of experts"),
    ],
)
def test_a_config_without_a_shape_is_one_line(tmp_path: Path, config: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert expected in line_of(shape_of, str(tmp_path))


def test_a_change_that_the_recipe_does_not_allow_is_not_proposed(make_recipe) -> None:
    recipe = make_recipe("Qwen3-4B", "stage.1.embedding_learning_rate=1e-6")
    planned = plan_for_cards(recipe, read_cards("24GB"))
    assert planned.change is None or not any("lora" in key for key in planned.change.keys)


@pytest.fixture
def make_recipe(tmp_path: Path):
    """A recipe for a model of a published shape."""

    def make(model: str = "Qwen3-4B", *overrides: str) -> Recipe:
        folder = tmp_path / model
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(PUBLISHED[model]))
        (tmp_path / "planned.toml").write_text(RECIPE.format(model=folder))
        return load_recipe(tmp_path / "planned.toml", overrides)

    return make


def phase(plan: CardPlan, name: str) -> Phase:
    return next(phase for phase in plan.phases if phase.name == name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_config_are_those_of_the_model(family: str) -> None:
    model = FAMILIES[family]()
    shape = read_shape(model.config.to_dict(), family)
    assert shape.weights == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "weights"),
    [("Qwen3-0.6B", 596_049_920), ("Qwen2.5-3B", 3_085_938_688), ("Qwen3-4B", 4_022_468_096)],
)
def test_published_shapes_have_the_weights_that_the_hub_counts(name: str, weights: int) -> None:
    assert read_shape(PUBLISHED[name], name).weights == weights


def test_a_model_that_cannot_be_reached_has_its_published_shape_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shape, note = shape_of("Qwen/Qwen3-4B-Instruct-2507")
    assert shape == read_shape(PUBLISHED["Qwen3-4B"], "")
    assert note == (
        "Qwen/Qwen3-4B-Instruct-2507: its config could not be read from the hub; its published shape is used"
    )
    with pytest.raises(SleuthError, match=r"nobody/nothing.*; the plan needs its config\.json"):
        shape_of("nobody/nothing")


SHAPE = ModelShape(layers=2, width=8, heads=2, kv_heads=1, head_dim=4, mlp=16, vocabulary=32, tied=True, qk_norm=True)
WEIGHTS = 256 + 8 + 2 * (64 + 32 + 32 + 64 + 3 * 128 + 2 * 8 + 2 * 4)


def learner(**changes: object) -> LearnerMemory:
    passes = Passes(shape=SHAPE, device=CUDA, size=2)
    settings = {"lora": None, "masters": True, "muon": False, "reference": True, "teacher": None, "checkpointed": True}
    return LearnerMemory(passes=passes, **(settings | {"ranks": 1, "offload": False} | changes))  # type: ignore[arg-type]


def test_one_process_holds_weights_masters_moments_and_reference() -> None:
    assert SHAPE.weights == WEIGHTS
    held, host = learner().state()
    assert held == {"weights": 2 * WEIGHTS, "masters": 4 * WEIGHTS, "optimiser": 8 * WEIGHTS, "reference": 2 * WEIGHTS}
    assert host == {}


def test_a_teacher_has_the_weights_of_its_own_shape() -> None:
    shape = replace(SHAPE, layers=4)
    teacher = Passes(shape=shape, device=CUDA, size=2)
    assert learner(teacher=teacher).state()[0]["teacher"] == 2 * shape.weights
    assert learner(teacher=teacher, ranks=4).state()[0]["teacher"] == 2 * shape.weights // 4
    held, _ = learner(teacher=teacher, reference=False).frozen_pass(64, 64, teacher)
    assert held["activations"] == 64 * (teacher.forward_work + 2 * shape.width)
    assert set(held) <= {part for parts in COLUMNS.values() for part in parts}, "the table shows every part"


def test_an_offloaded_state_is_on_the_host() -> None:
    held, host = learner(offload=True).state()
    assert held == {"weights": 2 * WEIGHTS, "reference": 2 * WEIGHTS}
    assert host == {"masters": 4 * WEIGHTS, "optimiser": 8 * WEIGHTS}
    _, host = learner(offload=True).update(64, 64)
    assert host["gradients"] == 4 * WEIGHTS


def test_adapters_alone_have_masters_moments_and_gradients() -> None:
    lora = LoraRecipe(rank=2, targets=("q_proj", "down_proj"))
    trained = 2 * 2 * ((8 + 8) + (8 + 16))
    adapted = learner(lora=lora)
    assert adapted.trained == trained
    held, _ = adapted.state()
    assert held["weights"] == 2 * (WEIGHTS + trained)
    assert (held["masters"], held["optimiser"]) == (4 * trained, 8 * trained)
    with pytest.raises(SleuthError, match="knows no layer 'c_attn'"):
        _ = learner(lora=LoraRecipe(targets=("c_attn",))).trained


def test_logits_of_a_card_come_in_larger_chunks() -> None:
    card, cpu = (Passes(shape=SHAPE, device=device, size=2) for device in (CUDA, CPU))
    assert card.logits(10_000, graded=True) == 2_048 * (2 + 12) * 32
    assert cpu.logits(10_000, graded=True) == 10_000 * 8 * 32  # of 2**21 logits at once
    assert cpu.logits(10, graded=False) == 10 * 6 * 32
    words = replace(SHAPE, vocabulary=151_936)
    assert Passes(shape=words, device=CUDA, size=2).logits(10_000, graded=True) == 2_048 * 151_936 * 2 + 12 * 2**25


def test_the_cache_takes_a_share_of_what_is_free_and_never_more_than_all_sequences_fill(make_recipe) -> None:
    recipe = make_recipe("Qwen3-4B", "stage.1.slots=512")
    small, large = (plan_for_cards(recipe, read_cards(name)) for name in ("h100-80", "b200-180"))
    rollout = phase(small, "rollout")
    free = 80_000_000_000 - total(rollout.bytes) + rollout.bytes["cache"] + rollout.bytes["activations"]
    assert rollout.bytes["cache"] == pytest.approx(0.8 * free)
    whole = rollout.asked * 64 * PAGE * 144 * 1024  # of 64 pages each
    assert rollout.need is not None
    assert rollout.need.at_limit == whole
    assert phase(large, "evaluation").bytes["cache"] == 100 * 16 * 256 * 144 * 1024  # one for each question


def test_typical_siblings_share_the_full_pages_of_their_prompt(make_recipe) -> None:
    recipe = make_recipe("Qwen3-4B", "stage.1.slots=256")
    plan = plan_for_cards(recipe, read_cards("h200-141"))
    lengths, page = recipe.stage[1].lengths(recipe, 1), PAGE * 144 * 1024
    assert (lengths.prompt, lengths.response, lengths.sampled) == (300, 3 * 120 + 2 * 3 * 160, 360)
    own = -(-lengths.typical // PAGE) - lengths.prompt // PAGE
    need = phase(plan, "rollout").need
    assert need is not None
    assert need.typical == (16 * (lengths.prompt // PAGE) + 128 * own) * page
    assert need.typical < need.at_limit


def test_where_no_keys_help_more_ranks_are_tried(make_recipe) -> None:
    small = ["stage.1.gradient_checkpointing=true", "stage.1.tokens_per_micro_batch=4096", "stage.1.cpu_offload=true"]
    plan = plan_for_cards(make_recipe("Qwen3-8B", *small, "stage.1.lora.rank=8"), read_cards("24GB"))
    assert not plan.fits
    assert plan.change is not None
    assert (plan.change.keys, plan.change.ranks) == ({}, 2)
    assert plan.line().endswith("; fits with --ranks 2")
    plan = plan_for_cards(make_recipe("Qwen3-8B", *small, "stage.1.lora.rank=8"), read_cards("12GB"))
    assert plan.change is None, "every rank holds the whole model between updates"
    assert plan.line().endswith("; neither one or two keys nor more ranks would make it fit")


def test_a_cache_that_holds_no_sequence_does_not_fit(make_recipe) -> None:
    recipe = make_recipe("Qwen3-0.6B", "stage.1.gradient_checkpointing=true")
    changed = recipe.model_copy(
        update={"stage": tuple(stage.model_copy(update={"cache_memory": "100MB"}) for stage in recipe.stage)}
    )
    [problem] = [line for line in plan_for_cards(changed, read_cards("h100-80")).problems if line.startswith("grpo")]
    assert problem == "grpo: rollout has 100.0 MB for the cache, and one sequence at its limit takes 469.8 MB"


def test_phases_and_sums_are_in_the_json(make_recipe) -> None:
    plan = plan_for_cards(make_recipe("Qwen3-0.6B", "stage.1.gradient_checkpointing=true"), read_cards("h100-80"))
    printed = json.loads(json.dumps(plan.as_json()))
    assert printed["fits"] is True
    names = [each["name"] for each in printed["phases"]]
    training = ["rollout", "reference pass", "update", "optimiser step", "checkpoint"]
    assert names == ["base: load", "base: evaluation", *(f"grpo: {name}" for name in training)]
    assert printed["peak_memory_bytes"] == max(sum(each["bytes"].values()) for each in printed["phases"])
    assert printed["steps"] == 100
    assert printed["seconds"] > 0
    assert printed["spare"] == pytest.approx(1 - printed["needed_bytes"] / 80e9)
    # The last two checkpoints and the best one, or fewer, and the one being written: bf16 weights, masters and moments.
    assert printed["peak_disk_bytes"] == pytest.approx(14 * 596_049_920, rel=0.01)


def test_evaluations_on_the_way_are_part_of_the_time_of_the_stage_that_makes_them(make_recipe) -> None:
    keys = ("Qwen3-0.6B", "stage.1.gradient_checkpointing=true", "stage.0.data.limit=50")
    plain = plan_for_cards(make_recipe(*keys), read_cards("h100-80"))
    plan = plan_for_cards(make_recipe(*keys, "stage.1.evaluate_every={ base = 30 }"), read_cards("h100-80"))
    trained = next(stage.seconds for stage in plan.stages if stage.name == "base")
    before, after = (next(one for one in each.stages if one.name == "grpo") for each in (plain, plan))
    assert trained
    assert before.seconds
    assert after.purposes["evaluations"] == pytest.approx(4 * trained)  # after 30, 60, 90 and 100 steps
    saves = after.purposes["saves"] - before.purposes["saves"]  # each evaluation is of a checkpoint
    assert after.seconds == pytest.approx(before.seconds + saves + 4 * trained)
    assert after.notes[-1] == "grpo: evaluates base 4 times on the way"


def test_servers_that_sleep_on_the_card_are_counted(make_recipe) -> None:
    pool = 'stage.1.engine={ urls = ["http://127.0.0.1:8000"], sleeps = true }'
    plan = plan_for_cards(make_recipe("Qwen3-0.6B", pool), read_cards("h100-80"))
    assert phase(plan, "rollout").bytes["server"] > 2 * 596_049_920
    assert 0 < phase(plan, "update").bytes["server"] < phase(plan, "rollout").bytes["server"]
    elsewhere = plan_for_cards(make_recipe("Qwen3-0.6B", pool.replace("127.0.0.1", "10.0.0.2")), read_cards("h100-80"))
    assert "server" not in phase(elsewhere, "rollout").bytes
    assert "cache" not in phase(elsewhere, "rollout").bytes


@pytest.mark.parametrize(
    ("pool", "cards", "ranks", "servers"),
    [
        ('urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]', "8 x h100-80", 6, 2),
        ('urls = ["http://127.0.0.1:1", "http://10.0.0.2:2"]', "8 x h100-80", 7, 1),
        ('urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]', "h100-80", 1, 0),  # their cards are not among these
        ('urls = ["http://127.0.0.1:1"], sleeps = true', "2 x h100-80", 2, 0),
        ('launch = "vllm", cards = [4, 5, 6, 7]', "8 x h100-80", 4, 4),
        ('launch = "vllm"', "8 x h100-80", 1, 7),
        ('launch = "vllm"', "h100-80", 1, 0),
    ],
)
def test_servers_take_cards_of_their_own(make_recipe, pool: str, cards: str, ranks: int, servers: int) -> None:
    plan = plan_for_cards(make_recipe("Qwen3-0.6B", f"stage.1.engine={{ {pool} }}"), read_cards(cards))
    assert (plan.ranks, plan.servers) == (ranks, servers)
    assert ("servers" in [each.name for each in plan.phases]) == bool(servers)


def test_a_server_holds_its_share_of_the_sequences_in_the_memory_given(make_recipe) -> None:
    pool = 'launch = "vllm", cards = [2, 3], memory = "20GB", requests_at_once = 16'
    plan = plan_for_cards(make_recipe("Qwen3-0.6B", f"stage.1.engine={{ {pool} }}"), read_cards("4 x h100-80"))
    held = phase(plan, "servers")
    assert (held.bytes["weights"], held.asked) == (2 * 596_049_920, 16)
    assert sum(held.bytes.values()) <= 20e9
    assert "cache" not in phase(plan, "rollout").bytes


@pytest.mark.parametrize(
    ("prompts", "servers", "requests"),
    [(32, 2, 128), (8, 2, 64), (8, 1, 64), (128, 2, 256), (33, 2, 132)],  # of 8 samples each; from 64 to 256
)
def test_a_server_has_its_share_of_a_step_in_flight_unless_its_recipe_says_how_much(
    make_recipe, prompts: int, servers: int, requests: int
) -> None:
    step = (f"stage.1.prompts_per_step={prompts}", "stage.1.samples_per_prompt=8")
    recipe = make_recipe("Qwen3-0.6B", 'stage.1.engine={ launch = "vllm" }', *step)
    pool = recipe.engine_at(1)
    assert recipe.requests_of(pool, servers) == requests
    told = make_recipe("Qwen3-0.6B", 'stage.1.engine={ launch = "vllm", requests_at_once = 7 }', *step)
    assert told.requests_of(told.engine_at(1), servers) == 7


def test_the_random_weights_that_a_run_makes_are_planned_by_their_shape() -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "tiny" / "base.toml")
    first = recipe.stage[0]
    assert isinstance(first, SupervisedRecipe)
    assert isinstance(first.data, WorldTextRecipe)
    assert first.init is not None
    model = random_model(first.init, make_text_tokenizer(first.data), seed=0)
    assert random_shape(first).weights == sum(weight.numel() for weight in model.parameters())
    held = plan_for_cards(recipe, read_cards("h100-80")).phases[0].bytes
    assert held["weights"] == 4 * random_shape(first).weights


@pytest.mark.parametrize(
    ("text", "count", "name", "memory"),
    [
        ("h100-80", 1, "h100-80", 80_000_000_000),
        ("8 x a100-40", 8, "a100-40", 40_000_000_000),
        ("8xl4", 8, "l4", 24_000_000_000),
        ("1 x 80 GB", 1, "80 GB", 80_000_000_000),
        ("24GiB", 1, "25.7698 GB", 24 * 2**30),
    ],
)
def test_cards_are_read_by_name_or_size(text: str, count: int, name: str, memory: int) -> None:
    cards = read_cards(text)
    assert (cards.count, cards.card.name, cards.card.memory) == (count, name, memory)
    assert cards.card.flops in {card.flops for card in CARDS.values()}


def test_a_recipe_with_an_unknown_card_is_refused(make_recipe) -> None:
    with pytest.raises(SleuthError, match=r"card = .h100.: no card is called 'h100'; the nearest is h100-80"):
        make_recipe("Qwen3-4B", "card=h100")
