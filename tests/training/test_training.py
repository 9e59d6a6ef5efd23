"""The loop that every stage trains in: what it does when a run falls ill, when memory is short, when it goes back."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import evaluation, figures, log, manifest, rows, weights
from verb import sleuth

from sleuth.answers.scorers import SCORERS
from sleuth.cli.pipeline import run_recipe, stage_to_roll_back
from sleuth.engines.local.engine import LocalEngine
from sleuth.host import disk
from sleuth.learn.policy import Policy
from sleuth.recipe import load_recipe
from sleuth.runs.chain import CHAIN
from sleuth.runs.checkpoints import checkpoints_in, load_state, step_of
from sleuth.runs.run_folder import RunFolder
from sleuth.training import grpo
from sleuth.training.grpo import GRPOTrainer
from sleuth.types import SleuthError

BRIEF = (
    "stage.0.data.limit=1",
    "stage.1.prompts_per_step=2",
    "stage.1.samples_per_prompt=4",
    "stage.1.env.turn_tokens=4",
    "stage.2.data.limit=1",
)
"""Where it is all the same what is played: too little to be right, so nothing is learned."""


def steps_saved(folder: Path) -> list[int]:
    return [step_of(place) for place in checkpoints_in(folder / "checkpoints")]


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished().parents[1], tmp_path / "run"))


# -- alarms ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sick(monkeypatch) -> None:
    """Every step from the third on shows the figure of a disease."""
    step = GRPOTrainer.step

    def sick_step(self: GRPOTrainer, number: int) -> dict[str, Any]:
        found = step(self, number)
        return found | {"sampler_learner_kl": 0.5} if number >= 3 else found

    monkeypatch.setattr(GRPOTrainer, "step", sick_step)


@pytest.mark.usefixtures("sick")
def test_a_warning_names_the_episodes_that_show_it_and_the_run_goes_on(run, recipe_file, tmp_path):
    run(recipe_file, tmp_path / "run", *BRIEF)
    for said in ("step 3: mismatch: sampler and learner disagree by 0.5 nats", "sample 0", "in step-000003.parquet"):
        assert said in log(tmp_path / "run")
    assert [row.get("alarms") for row in rows(tmp_path / "run")] == [None, None, ["mismatch"], None]
    run(recipe_file, tmp_path / "quiet", *BRIEF, 'stage.1.alarms.mismatch="off"')
    assert "mismatch" not in log(tmp_path / "quiet")


@pytest.mark.usefixtures("sick")
@pytest.mark.sentinel
def test_a_pause_saves_and_the_same_command_goes_on_and_a_stop_ends_where_it_last_saved(run, recipe_file, tmp_path):
    pause, stop = ((*BRIEF, f'stage.1.alarms.mismatch="{action}"') for action in ("pause", "stop"))
    with pytest.raises(SleuthError, match=r"paused at step 3 by mismatch; .*step-000003 is saved"):
        run(recipe_file, tmp_path / "pause", *pause)
    assert steps_saved(tmp_path / "pause") == [2, 3]
    run(recipe_file, tmp_path / "pause", *pause)
    assert [row["step"] for row in rows(tmp_path / "pause")] == [1, 2, 3, 4]
    for _ in range(2):  # the same command comes to the same end
        with pytest.raises(SleuthError, match=r"stopped at step 3 by mismatch; the last checkpoint is .*step-000002"):
            run(recipe_file, tmp_path / "stop", *stop)
        assert steps_saved(tmp_path / "stop") == [2]


def test_a_loss_that_is_no_number_leaves_the_weights_and_ends_the_run_unless_it_is_only_to_be_told(
    run, recipe_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(grpo, "group_advantages", lambda values, *_, **__: [float("nan")] + [1.0] * (len(values) - 1))
    with pytest.raises(SleuthError, match="stopped at step 1 by not_finite; the last checkpoint is none yet"):
        run(recipe_file, tmp_path / "stopped", *BRIEF)
    last = run(recipe_file, tmp_path / "told", *BRIEF, 'stage.1.alarms.not_finite="warn"')
    assert all(row["loss"] is None for row in rows(tmp_path / "told"))
    assert load_state(last)["policy"]["optimiser"]["steps"] == 0


# -- going back --------------------------------------------------------------------------------------------------------


def test_going_back_forgets_what_came_after_the_best_checkpoint_and_draws_anew(run, recipe_file, tmp_path):
    folder, saving = tmp_path / "run", ("stage.1.save_every=1", "stage.1.keep=4")
    run(recipe_file, folder, *saving)
    before, kept = rows(folder), (folder / "recipe.toml").read_bytes()
    means = {step: sum(row["reward_mean"] for row in before[:step]) / step for step in range(1, 5)}
    best = max(means, key=means.__getitem__)
    with pytest.raises(SleuthError, match="holds another run: name is "):
        RunFolder.open(folder, load_recipe(recipe_file, ['name="another"']), changed=True)
    assert (folder / "recipe.toml").read_bytes() == kept
    changed = load_recipe(recipe_file, [*saving, "stage.1.steps=6"])
    with RunFolder.open(folder, changed, changed=True) as place:
        place.say(stage_to_roll_back(changed, place).roll_back())
        assert steps_saved(folder)[-1] == best
        run_recipe(changed, place)
    after = rows(folder)
    assert [row["step"] for row in after] == [1, 2, 3, 4, 5, 6]
    assert after[:best] == before[:best]
    assert f"to step {best}, the best checkpoint of stage grpo" in log(folder)
    assert manifest(folder)["rolled_back"] == [{"stage": "grpo", "left": 4, "begun_at": best}]


def test_going_back_forgets_what_was_measured_of_the_weights_that_it_leaves(run, recipe_file, folder):
    changed = [row | {"reward_mean": 1.0 if row["step"] <= 2 else 0.0} for row in rows(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    (folder / CHAIN).unlink()
    base, before = (evaluation(folder, name) for name in ("base", "trained"))
    recipe = load_recipe(recipe_file)
    with RunFolder.open(folder, recipe, changed=True) as place:
        stage_to_roll_back(recipe, place).roll_back()
    assert [file.name for file in (folder / "eval").iterdir()] == ["base.json"]
    last = run(recipe_file, folder)
    trained = evaluation(folder, "trained")
    assert trained["model_sha256"] == hashlib.sha256(weights(last)).hexdigest() != before["model_sha256"]
    assert (base["after"], trained["after"]) == ([], ["grpo"])
    assert evaluation(folder, "base") == base


def test_an_evaluation_of_other_weights_is_made_again_and_one_of_the_same_is_kept(run, recipe_file, folder):
    file = folder / "eval" / "trained.json"
    measured = file.read_bytes()
    run(recipe_file, folder)
    assert file.read_bytes() == measured
    file.write_text(json.dumps(json.loads(measured) | {"model_sha256": "0" * 64}))
    (folder / CHAIN).unlink()
    run(recipe_file, folder)
    assert json.loads(file.read_bytes())["model_sha256"] == json.loads(measured)["model_sha256"]
    assert "trained.json is not of the weights that" in log(folder)


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_run_does_not_go_on_under_another_reward_unless_that_one_is_named(
    run, finished, recipe_file, tmp_path, monkeypatch
):
    shutil.copytree(finished("stage.1.stop_after=2").parents[1], tmp_path / "run")
    monkeypatch.setitem(SCORERS, "strict", replace(SCORERS["strict"], version=2))
    with pytest.raises(
        SleuthError, match=r"scorer_version: the checkpoint 1, the recipe 2; .*--accept-reward \w+"
    ) as caught:
        run(recipe_file, tmp_path / "run")
    recipe = load_recipe(recipe_file)
    for wrong in ("0123456789ab", None):
        with RunFolder.open(tmp_path / "run", recipe, accepted_reward=wrong) as folder, pytest.raises(SleuthError):
            run_recipe(recipe, folder)
    named = str(caught.value).rsplit(" ", 1)[1]
    with RunFolder.open(tmp_path / "run", recipe, accepted_reward=named) as folder:
        run_recipe(recipe, folder)
    run(recipe_file, tmp_path / "run")  # from now on it is the run's own


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--accept-reward", "0123456789ab"], "--accept-reward 0123456789ab: the recipe's reward is "),
        (["--roll-back", "--set", "stage.1.learning_rate=1e-4"], "holds no checkpoint to go back to"),
    ],
)
def test_a_flag_that_cannot_be_followed_leaves_the_run_as_it_was(recipe_file, tmp_path, flags, said):
    with RunFolder.open(tmp_path / "run", load_recipe(recipe_file)):
        pass
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    ended = sleuth("train", recipe_file, "--run", tmp_path / "run", *flags)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_a_stage_that_begins_under_another_protocol_says_what_differs(run, finished, recipe_file, tmp_path):
    begun = (f'model="{finished("stage.1.stop_after=2")}"', "stage.1.stop_after=1")
    run(recipe_file, tmp_path / "second", *BRIEF, *begun, "stage.1.env.top_k=2")
    said = "another protocol: dialect.top_k: the first checkpoint 3, this stage 2"
    assert said in log(tmp_path / "second")
    run(recipe_file, tmp_path / "third", *BRIEF[:3], BRIEF[-1], *begun)
    assert "another protocol" not in log(tmp_path / "third")


# -- memory and disk ---------------------------------------------------------------------------------------------------


def test_an_update_that_runs_out_of_memory_is_made_again_in_halves_and_so_are_those_after_a_resume(
    run, recipe_file, tmp_path, monkeypatch
):
    update = Policy.update
    budgets: list[int] = []

    def scarce(self: Any, batch: Any, loss: Any, *, budget: int, **more: Any) -> Any:
        budgets.append(budget)
        if budget > 1_500:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return update(self, batch, loss, budget=budget, **more)

    monkeypatch.setattr(Policy, "update", scarce)
    run(recipe_file, tmp_path / "run", "stage.1.stop_after=2")
    assert "out of memory: retrying with 1024 tokens at once, and going on so" in log(tmp_path / "run")
    assert budgets == [4096, 2048, 1024, 1024]
    run(recipe_file, tmp_path / "run")
    assert budgets[4:] == [1024] * 2


def test_a_card_gets_cached_memory_back_between_a_rollout_and_an_update_and_between_stages(
    run, recipe_file, tmp_path, monkeypatch
):
    events: list[str] = []

    def recorded(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            events.append(name)
            return method(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        *((LocalEngine, "sleep"), (LocalEngine, "publish")),
        *((Policy, "update"), (torch.cuda, "empty_cache")),
    ):
        recorded(owner, name)
    run(recipe_file, tmp_path / "run", "stage.1.stop_after=2", "seed=5")
    rest = ["sleep", "empty_cache"]  # of the engine's own cache
    without = [*rest, "empty_cache", "empty_cache", "publish"]  # the first step has nothing to learn
    step = [*rest, "empty_cache", "update", "empty_cache", "publish"]
    begun = ["empty_cache", "empty_cache", "publish"]  # between stages, and before servers would wake
    assert events == [*rest, *begun, *without, *step, "empty_cache", *rest, "empty_cache"]


def test_a_run_that_can_never_be_saved_is_refused_before_its_first_step(run, recipe_file, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda place: 10_000_000)
    with pytest.raises(SleuthError, match=r"10\.0 MB are free on this disk, and a checkpoint takes"):
        run(recipe_file, tmp_path / "run", *BRIEF)
    assert figures(tmp_path / "run") == []
