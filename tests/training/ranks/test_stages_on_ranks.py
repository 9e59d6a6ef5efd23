"""A recipe on ranks is the recipe: what it plays, learns and leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import finish, torchrun, torchrun_forking
from run_files import bytes_of, figures, groups, written
from runs_on_ranks import run_on, run_short_of_memory

from benchmarks.ranks_killed import ranks_of
from sleuth.cli.pipeline import require_ranks
from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.runs.checkpoints import checkpoints_in, step_of
from sleuth.types import SleuthError

pytestmark = pytest.mark.ranks

UNEQUAL = ("tokens_computed",)
"""Of prefixes that two ranks share each computes its own."""
DIFFERENCES = ("margin", "chosen_gain", "rejected_gain", "kl", "sampler_learner_kl", "search_gain")
"""Log-probabilities less others of their size: these agree to 1e-5 of what they are made of, some nats."""
NEAR = {"loss": 1e-6} | dict.fromkeys(DIFFERENCES, 2e-5)
"""A loss is a mean of advantages, about 1 and of both signs, in fp32: one of -0.0074 was within 1.4e-7 in seven runs on
the same two ranks."""


def assert_same_run(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.keys() == wanted.keys()
        for name in found.keys() - set(UNEQUAL):
            if isinstance(wanted[name], float):
                assert found[name] == pytest.approx(wanted[name], rel=1e-5, abs=NEAR.get(name, 1e-7)), name
            else:
                assert found[name] == wanted[name], name


@pytest.fixture(scope="session")
def whole(recipes, under_torchrun, once) -> Callable[[str, int], Path]:
    """`whole(kind, ranks)`: the folder of a run that nobody stopped."""

    def run(kind: str, ranks: int) -> Path:
        if (kind, ranks) == ("grpo", 2):
            return under_torchrun
        return once(f"{kind}-on-{ranks}", partial(run_on, ranks, recipes[kind]))

    return run


@pytest.fixture(scope="session")
def half(recipes, once) -> Callable[[str, int, Path], None]:
    """`half(kind, ranks, folder)`: fills a folder with a run that was stopped after two of its four steps."""

    def run(kind: str, ranks: int, folder: Path) -> None:
        make = partial(run_on, ranks, recipes[kind])
        shutil.copytree(once(f"half-of-{kind}-on-{ranks}", lambda new: make(new, "stage.0.stop_after=2")), folder)

    return run


def assert_same_bytes(folder: Path, other: Path) -> None:
    assert bytes_of(folder) == bytes_of(other)
    assert figures(folder) == figures(other)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        pytest.param("supervised", 2, marks=pytest.mark.slow),
        ("grpo", 2),
        pytest.param("grpo", 4, marks=pytest.mark.slow),
        ("lora", 2),
        pytest.param("minibatches", 2, marks=pytest.mark.slow),
        ("thoughts", 2),
        ("online_dpo", 2),
    ],
)
def test_a_stage_on_ranks_has_the_figures_of_one_process(whole, kind, ranks):
    shared, alone = whole(kind, ranks), whole(kind, 1)
    ours, theirs = figures(shared), figures(alone)
    assert any(row["loss"] for row in theirs), "something was learned"
    assert_same_run(ours, theirs)
    assert written(shared) == written(alone), "the first rank writes what one process writes"
    for mine, other in zip(groups(shared), groups(alone), strict=True):
        assert mine.task.id == other.task.id
        assert [one.trajectory.tokens for one in mine.episodes] == [one.trajectory.tokens for one in other.episodes]
        values, others = ([score.value for score in group.scores] for group in (mine, other))
        assert values == pytest.approx(others, rel=0, abs=1e-5 if kind == "thoughts" else 0)  # gains are nats


@pytest.mark.sentinel
def test_two_runs_on_two_ranks_are_the_same_bytes(recipes, whole, tmp_path):
    run_on(2, recipes["grpo"], tmp_path / "other")
    assert_same_bytes(tmp_path / "other", whole("grpo", 2))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("supervised", marks=pytest.mark.slow),
        "grpo",
        pytest.param("lora", marks=pytest.mark.slow),
        pytest.param("minibatches", marks=pytest.mark.slow),
        "thoughts",
        "online_dpo",
    ],
)
def test_a_run_that_goes_on_with_as_many_ranks_is_the_same_bytes(recipes, whole, half, tmp_path, kind):
    half(kind, 2, tmp_path / "parts")
    run_on(2, recipes[kind], tmp_path / "parts")
    assert_same_bytes(tmp_path / "parts", whole(kind, 2))


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(2, 4, marks=pytest.mark.slow), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(recipes, whole, half, tmp_path, before, after):
    half("grpo", before, tmp_path / "run")
    run_on(after, recipes["grpo"], tmp_path / "run")
    assert_same_run(figures(tmp_path / "run"), figures(whole("grpo", 1)))


def test_single_process_features_are_refused_on_ranks_in_one_line(recipes):
    muon, two = load_recipe(recipes["grpo"], ["stage.0.optimiser=muon"]), Ranks(rank=0, world=2)
    with pytest.raises(SleuthError, match=r'stage\.0 \(grpo\): optimiser = "muon" needs whole matrices'):
        require_ranks(muon, two)
    require_ranks(muon, Ranks())
    require_ranks(load_recipe(recipes["grpo"], ["stage.0.cpu_offload=true"]), two)
    with pytest.raises(SleuthError, match='no effect with device = "cpu"'):
        load_recipe(recipes["grpo"], ["stage.0.cpu_offload=true", "device=cpu"])


def test_a_rank_out_of_memory_ends_the_run_which_continues_with_half_the_budget(recipes, tmp_path):
    halves = ("stage.0.stop_after=1", "stage.0.tokens_per_micro_batch=256")
    run_on(2, recipes["grpo"], tmp_path / "halves", *halves)
    short = partial(run_short_of_memory, recipes["grpo"], tmp_path / "short", "stage.0.stop_after=1")
    with pytest.raises(
        AssertionError, match=r"out of memory on rank 1 of 2 with 512 tokens .*, with 256 tokens at once"
    ):
        short(most=256)
    short(most=256)
    assert_same_bytes(tmp_path / "short", tmp_path / "halves")
    assert "from here on an update takes 256 tokens" in (tmp_path / "short" / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_run_of_which_one_rank_was_killed_ends_with_the_same_bytes(recipes, under_torchrun, tmp_path, killed):
    train = ("train", str(recipes["grpo"]), "--run")
    folder = tmp_path / "killed"
    broken = torchrun(*train, str(folder))
    ranks = ranks_of(broken, folder)
    while broken.poll() is None and not list(folder.glob("checkpoints/step-000002")):
        time.sleep(0.02)
    os.kill(ranks[killed], signal.SIGKILL)
    finish(broken)
    assert broken.returncode != 0
    finish(torchrun(*train, str(folder)))
    assert_same_bytes(folder, under_torchrun)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_that_are_asked_to_end_save_the_same_step_and_go_on_with_the_same_bytes(
    recipes, under_torchrun, tmp_path, number
):
    train = ("train", str(recipes["grpo"]), "--run")
    folder = tmp_path / "interrupted"
    asked = torchrun(*train, str(folder))
    while asked.poll() is None and not (folder / "rollouts" / "step-000002.parquet").exists():
        time.sleep(0.02)
    asked.send_signal(number)  # torchrun passes it on to both ranks
    said = finish(asked)
    assert asked.returncode != 0
    assert said.count("the same command goes on") == 1
    saved = checkpoints_in(folder / "checkpoints")
    assert f"saved at step {step_of(saved[-1])}" in said
    assert len(figures(folder)) == step_of(saved[-1]) < 4
    finish(torchrun(*train, str(folder)))
    assert_same_bytes(folder, under_torchrun)


def test_bad_input_is_printed_once(recipes, tmp_path):
    process = torchrun_forking(
        "train", str(recipes["grpo"]), "--set", "stage.0.data.questions=nowhere.jsonl", "--run", str(tmp_path)
    )
    said = finish(process)
    assert process.returncode != 0
    assert said.count("error: ") == 1
    assert "nowhere.jsonl" in said


HELD_OUT = """
[[stage]]
kind = "evaluate"
name = "held_out"
data = {{ questions = "{world}/qa_test.jsonl", limit = 2 }}
"""
HOOK = """
from dataclasses import replace

class Even:
    def score(self, step, groups):
        even = lambda scores: tuple(replace(score, value=at % 2 + 0.5) for at, score in enumerate(scores))
        return [replace(group, scores=even(group.scores)) for group in groups]

    def measure(self, step, groups):
        return {"groups": len(groups)}
"""


@pytest.mark.slow
def test_evaluations_and_hooks_on_ranks_are_those_of_one_process(recipes, world, tmp_path):
    recipe = tmp_path / "evaluated.toml"
    recipe.write_text(recipes["lora"].read_text() + HELD_OUT.format(world=world))
    (tmp_path / "even.py").write_text(HOOK)
    rule = ("stage.0.evaluate_every={ held_out = 1 }", "stage.0.best=em", "stage.0.stop_after=2")
    for ranks in (1, 2):
        run_on(ranks, recipe, tmp_path / f"on-{ranks}", *rule, "stage.0.hooks=['even:Even']")
    ours, theirs = figures(tmp_path / "on-2"), figures(tmp_path / "on-1")
    assert [row["reward_mean"] for row in ours] == [1.0, 1.0]
    assert all("eval_held_out/em" in row and row["hook_Even/groups"] == 4 for row in ours)
    assert_same_run(ours, theirs)
    assert written(tmp_path / "on-2") == written(tmp_path / "on-1")
