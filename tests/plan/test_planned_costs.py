"""What a run will take, reckoned by hand from a probe of round numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.plan.plan import plan_of, rank_memory
from sleuth.plan.probe import Cost, Evaluated, Probe, run_probe, shortened
from sleuth.recipe import CitationRecipe, GrpoRecipe, Recipe, load_recipe
from sleuth.recipe.judges import HttpJudgeRecipe
from sleuth.types import SleuthError

RECIPE = """
name = "planned"
model = "models/tiny-base"

[[stage]]
kind = "evaluate"
name = "base"
forced_search_arm = true
data = { questions = "q.jsonl" }

[[stage]]
kind = "grpo"
steps = 100
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-3
context = 400
save_every = 30
keep = 2
milestone_every = 50
data = { questions = "q.jsonl" }
env = { kind = "search", dialect = "sleuth", prompt = "plain", retriever = "empty" }
reward = [{ kind = "answer" }]
"""
QUESTIONS = {0: 1_000, 1: 500}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "planned.toml").write_text(RECIPE)
    return load_recipe(tmp_path / "planned.toml")


def row(rollout: float, update: float, signal: float | None, tokens: float = 10.0) -> dict[str, float | None]:
    return {
        "seconds_rollout": rollout,
        "seconds_update": update,
        "nonzero_advantage_fraction": signal,
        "response_tokens_mean": tokens,
    }


def probe(*rows: dict[str, float | None]) -> Probe:
    spent = sum((each["seconds_rollout"] or 0) + (each["seconds_update"] or 0) for each in rows)
    return Probe(
        rows={"grpo": rows},
        costs={
            "base": Cost(seconds={"total": 7.0, "asking": 5.0}, host_memory=500, gpu_memory=0),
            "grpo": Cost(seconds={"total": spent + 3.0 + 0.5, "saving": 0.5}, host_memory=800, gpu_memory=90),
        },
        evaluated={"base": Evaluated(questions=100, tokens=2_500, bytes=40_000)},
        checkpoints={"grpo": (10_000, 30_000)},
        bytes_a_step={"grpo": 700.0},
    )


def test_steps_and_episodes_are_counted_without_a_probe(recipe: Recipe) -> None:
    told = plan_of(recipe, QUESTIONS).as_json()
    assert (told["steps"], told["prompts"], told["episodes"], told["judge_calls"]) == (100, 1_400, 5_200, 0)
    unknown = ("tokens", "seconds", "seconds_at_most", "peak_memory_bytes", "peak_gpu_memory_bytes", "peak_disk_bytes")
    assert [told[key] for key in unknown] == [None] * 6


def test_what_a_model_is_asked_is_known_after_a_probe(recipe: Recipe) -> None:
    judge = HttpJudgeRecipe(kind="http", urls=("http://127.0.0.1:8000",), model="judge-8b")
    reward = CitationRecipe.model_validate({"kind": "citation", "judge": judge})
    judged = recipe.model_copy(
        update={"stage": (recipe.stage[0], recipe.stage[1].model_copy(update={"reward": (reward,)}))}
    )
    assert plan_of(judged, QUESTIONS).as_json()["judge_calls"] is None
    rows = [row(1, 1, 1.0) | {"judge_asked": asked} for asked in (500, 30, 50)]  # the first step does not count
    assert plan_of(judged, QUESTIONS, probe(*rows)).as_json()["judge_calls"] == 40 * 100


def test_a_probe_is_carried_to_the_end_of_the_run(recipe: Recipe) -> None:
    base, grpo = plan_of(recipe, QUESTIONS, probe(row(9, 9, 0.5), row(2, 1, 0.5, 20), row(4, 1, 0.5, 30))).stages
    assert base.seconds == 2 + 5 * 10  # the model is read once, ten times as many are asked
    assert base.tokens == 25_000
    # The first step warms up; then 4 on average, of which 0.6 are left after 3 x 3 steps; 5 saves, after 30, 50, 60, 90
    # and 100, of half a second each; 3 s once.
    assert grpo.seconds == pytest.approx(3 + 4 * (9 + 0.6 * 91) + 5 * 0.5)
    assert grpo.seconds_at_most == pytest.approx(3 + 4 * 100 + 5 * 0.5)
    assert grpo.tokens == 25 * 3_200


@pytest.mark.parametrize(("signal", "update"), [(1.0, 0.5), (0.8, 0.625), (0.5, 1.0), (0.25, 1.0), (None, 1.0)])
def test_an_update_is_reckoned_with_half_the_groups_where_more_carry_signal(
    recipe: Recipe, signal: float | None, update: float
) -> None:
    _, grpo = plan_of(recipe, QUESTIONS, probe(row(2, 1, signal), row(2, 1, signal))).stages
    assert grpo.seconds == pytest.approx(3 + (2 + update) * (6 + 0.6 * 94) + 5 * 0.5)
    assert grpo.seconds_at_most == pytest.approx(3 + 3 * 100 + 5 * 0.5)


def test_memory_is_that_of_the_hungriest_stage_and_disk_that_of_the_fullest_moment(recipe: Recipe) -> None:
    told = plan_of(recipe, QUESTIONS, probe(row(1, 1, 1.0)))
    assert (told.peak_memory_bytes, told.peak_gpu_memory_bytes) == (800, 90)
    # Two kept, the best and the one being written; weights of steps 50 and 100; evaluation and 100 steps beside them.
    assert told.peak_disk_bytes == 4 * 40_000 + 2 * 10_000 + 400_000 + 70_000
    rare = recipe.model_copy(
        update={
            "stage": (recipe.stage[0], recipe.stage[1].model_copy(update={"save_every": 100, "milestone_every": None}))
        }
    )
    assert plan_of(rare, QUESTIONS, probe(row(1, 1, 1.0))).peak_disk_bytes == 40_000 + 400_000 + 70_000


def test_what_a_rank_holds_falls_with_their_number(recipe: Recipe) -> None:
    """By hand, fp32, 1,000 weights that all learn: 4,000 bytes stored, 8,000 of moments. One process holds 4 + 4 + 8 +
    4 = 20 thousand at a step, so that 5,000 of the 25,000 are other things. A rank holds those, the whole model, and of
    weights, moments and a copy to compare with (4 + 8 + 4 thousand) its part."""
    measured = replace(
        probe(row(1, 1, 1.0)),
        costs={"grpo": Cost(seconds={"total": 9.0, "saving": 0.5}, host_memory=25_000, gpu_memory=0)},
        checkpoints={"grpo": (4_000, 8_000)},
    )
    two, four = (rank_memory(recipe, measured, world) for world in (2, 4))
    assert (two.each, four.each) == (5_000 + 4_000 + 16_000 // 2, 5_000 + 4_000 + 16_000 // 4)
    assert (two.host, four.host) == (two.each, four.each)
    assert (two.first, four.first) == (5_000 + 4_000 + 6_000 + 8_000, 5_000 + 4_000 + 3_000 + 8_000)


def test_of_16_bits_masters_are_in_shards_and_so_is_the_reference(recipe: Recipe) -> None:
    """By hand, bf16, 1,000 weights, with a KL: 2,000 bytes stored and 2,000 of the reference, 12,000 of state. One
    process holds 2 + 4 + 8 + 4 + 2 = 20 thousand. A rank holds the model (2), and of masters, moments, reference and
    the copy (4 + 8 + 2 + 2) its part."""
    stage = recipe.stage[1]
    assert isinstance(stage, GrpoRecipe)
    loss = stage.loss.model_copy(update={"beta": 0.1})
    changes = {"dtype": "bfloat16", "stage": (recipe.stage[0], stage.model_copy(update={"loss": loss}))}
    measured = replace(
        probe(row(1, 1, 1.0)),
        costs={"grpo": Cost(seconds={"total": 9.0, "saving": 0.5}, host_memory=50_000, gpu_memory=21_000)},
        checkpoints={"grpo": (2_000, 12_000)},
    )
    four = rank_memory(recipe.model_copy(update=changes), measured, 4)
    assert four.each == 1_000 + 2_000 + 16_000 // 4
    assert four.host == 50_000, "nothing of the weights lies there"
    assert four.first == 50_000 + 12_000, "the state comes together beside the card"


def test_with_cpu_offload_a_card_holds_the_model_and_the_host_the_shards(recipe: Recipe) -> None:
    """By hand, bf16, 1,000 weights: 2,000 bytes stored, 12,000 of state. One process holds 2 + 4 + 8 + 4 = 18 thousand,
    so that 3,000 of the card's 21,000 are other things. A card keeps those and the model; the host takes its part of
    masters, moments, the copy and gradients (4 + 8 + 2 + 4), and at a save of the first two, with the whole state."""
    changes = {
        "dtype": "bfloat16",
        "stage": (recipe.stage[0], recipe.stage[1].model_copy(update={"cpu_offload": True})),
    }
    offloading = recipe.model_copy(update=changes)
    costs = {"grpo": Cost(seconds={"total": 9.0, "saving": 0.5}, host_memory=50_000, gpu_memory=21_000)}
    measured = replace(probe(row(1, 1, 1.0)), costs=costs, checkpoints={"grpo": (2_000, 12_000)})
    four = rank_memory(offloading, measured, 4)
    assert four.each == 3_000 + 2_000
    assert four.host == 50_000 + 18_000 // 4
    assert four.first == 50_000 + 12_000 // 4 + 12_000


def test_where_the_probe_had_no_card_cpu_offload_changes_nothing(recipe: Recipe) -> None:
    costs = {"grpo": Cost(seconds={"total": 9.0, "saving": 0.5}, host_memory=25_000, gpu_memory=0)}
    measured = replace(probe(row(1, 1, 1.0)), costs=costs, checkpoints={"grpo": (4_000, 8_000)})
    stages = (recipe.stage[0], recipe.stage[1].model_copy(update={"cpu_offload": True}))
    assert rank_memory(recipe.model_copy(update={"stage": stages}), measured, 4) == rank_memory(recipe, measured, 4)


def test_a_shortened_recipe_keeps_its_horizon(recipe: Recipe) -> None:
    base, grpo = shortened(recipe, 3).stage
    assert base.data.limit == 128
    assert isinstance(grpo, GrpoRecipe)
    assert (grpo.steps, grpo.stop_after) == (100, 3)
    assert (grpo.save_every, grpo.milestone_every) == (3, None)  # what one save takes is what is measured
    assert shortened(recipe, 1_000).stage[1].stop_after == 100


def test_a_probe_offloads_as_one_process_will_and_for_ranks_holds_all(recipe: Recipe) -> None:
    stages = (recipe.stage[0], recipe.stage[1].model_copy(update={"cpu_offload": True}))
    offloaded = recipe.model_copy(update={"stage": stages})
    assert shortened(offloaded, 3).stage[1].cpu_offload
    assert not shortened(offloaded, 3, world=2).stage[1].cpu_offload


def test_of_a_suite_a_probe_asks_a_few_of_each_set(recipe: Recipe) -> None:
    data = recipe.stage[0].data.model_copy(update={"questions": None, "suite": "seven"})
    suite = recipe.model_copy(update={"stage": (recipe.stage[0].model_copy(update={"data": data}), recipe.stage[1])})
    assert shortened(suite, 3).stage[0].data.per_set == 32


def test_a_probe_that_fails_says_what_the_run_said(recipe: Recipe, tmp_path: Path) -> None:
    fails = (sys.executable, "-c", "import sys; print('loading'); sys.exit('error: the disk is full')")
    with pytest.raises(SleuthError, match=r"^the probe failed: the disk is full$"):
        run_probe(shortened(recipe, 2), fails, tmp_path)
