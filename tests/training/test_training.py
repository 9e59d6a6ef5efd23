"""The loop that every stage trains in: what it does when the disk fills up, when a run falls ill, when it goes back."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sleuth.answers.scorers import SCORERS
from sleuth.cli.app import app
from sleuth.cli.pipeline import run_recipe, stage_to_roll_back
from sleuth.engines.local.engine import LocalEngine
from sleuth.host import disk
from sleuth.learn.policy import Policy
from sleuth.recipe import load_recipe
from sleuth.runs import eval_file, stage_checkpoints
from sleuth.runs.chain import CHAIN
from sleuth.runs.checkpoints import checkpoints_in, load_state, step_of
from sleuth.runs.run_folder import RunFolder
from sleuth.training import grpo, rollout_worker
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


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def figures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_saved(folder: Path) -> list[int]:
    return [step_of(place) for place in checkpoints_in(folder / "checkpoints")]


def sick(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Every step from the third on shows the figures of a disease."""
    step = GRPOTrainer.step

    def sick_step(self: GRPOTrainer, number: int) -> dict[str, Any]:
        found = step(self, number)
        return found | changes if number >= 3 else found

    monkeypatch.setattr(GRPOTrainer, "step", sick_step)


class FullDisk:
    """No room on the disk while the steps in `steps` are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
        self.step = 0
        step, free, rollouts = GRPOTrainer.step, disk.free_bytes, rollout_worker.write_rollouts

        def counted(trainer: GRPOTrainer, number: int) -> dict[str, Any]:
            self.step = number
            return step(trainer, number)

        def room(place: Path) -> int:
            return 0 if self.step in steps else free(place)

        def written(*arguments: Any) -> None:
            if self.step in steps:
                raise OSError(errno.ENOSPC, "No space left on device")
            rollouts(*arguments)

        monkeypatch.setattr(GRPOTrainer, "step", counted)
        monkeypatch.setattr(disk, "free_bytes", room)
        monkeypatch.setattr(stage_checkpoints, "free_bytes", room)
        monkeypatch.setattr(rollout_worker, "write_rollouts", written)


def test_a_disk_that_is_full_for_a_while_loses_nothing_and_the_weights_are_those_of_a_run_without(
    run, finished, recipe_file, tmp_path, monkeypatch
):
    whole = finished()
    FullDisk(monkeypatch, range(2, 4))
    last = run(recipe_file, tmp_path / "full")
    assert (last / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [row["step"] for row in figures(tmp_path / "full")] == [1, 2, 3, 4]
    assert len(list((tmp_path / "full" / "rollouts").iterdir())) == 4
    assert "no room on the disk for the rollouts of step 2" in log(tmp_path / "full")
    assert "step 2: no room on the disk for a checkpoint; the last good one is none yet" in log(tmp_path / "full")
    assert "there is room on the disk again" in log(tmp_path / "full")


def test_a_disk_that_is_full_to_the_end_is_told_in_one_line_and_the_run_goes_on_from_its_last_save(
    run, finished, recipe_file, tmp_path, monkeypatch
):
    whole = finished()
    with monkeypatch.context() as patch:
        FullDisk(patch, range(3, 9))
        with pytest.raises(SleuthError, match=r"the disk is full.*run the same command"):
            run(recipe_file, tmp_path / "full")
    assert steps_saved(tmp_path / "full") == [2]
    last = run(recipe_file, tmp_path / "full")
    assert (last / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_that_can_never_be_saved_is_refused_before_its_first_step(run, recipe_file, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda place: 10_000_000)
    with pytest.raises(SleuthError, match=r"10\.0 MB are free on this disk, and a checkpoint takes"):
        run(recipe_file, tmp_path / "run", *BRIEF)
    assert figures(tmp_path / "run") == []


def test_a_warning_names_the_episodes_that_show_it_and_the_run_goes_on(run, recipe_file, tmp_path, monkeypatch):
    sick(monkeypatch, sampler_learner_kl=0.5)
    run(recipe_file, tmp_path / "run", *BRIEF)
    assert "step 3: mismatch: sampler and learner disagree by 0.5 nats" in log(tmp_path / "run")
    assert "sample 0" in log(tmp_path / "run")
    assert "in step-000003.parquet" in log(tmp_path / "run")
    assert [row.get("alarms") for row in figures(tmp_path / "run")] == [None, None, ["mismatch"], None]


def test_a_pause_saves_and_the_same_command_goes_on(run, recipe_file, tmp_path, monkeypatch):
    sick(monkeypatch, sampler_learner_kl=0.5)
    pause = (*BRIEF, 'stage.1.alarms.mismatch="pause"')
    with pytest.raises(SleuthError, match=r"paused at step 3 by mismatch; .*step-000003 is saved"):
        run(recipe_file, tmp_path / "run", *pause)
    assert steps_saved(tmp_path / "run") == [2, 3]
    run(recipe_file, tmp_path / "run", *pause)
    assert [row["step"] for row in figures(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_stop_ends_the_run_where_it_last_saved(run, recipe_file, tmp_path, monkeypatch):
    sick(monkeypatch, sampler_learner_kl=0.5)
    for _ in range(2):  # the same command comes to the same end
        with pytest.raises(SleuthError, match=r"stopped at step 3 by mismatch; the last checkpoint is .*step-000002"):
            run(recipe_file, tmp_path / "run", *BRIEF, 'stage.1.alarms.mismatch="stop"')
        assert steps_saved(tmp_path / "run") == [2]


def test_an_alarm_that_is_off_says_nothing(run, recipe_file, tmp_path, monkeypatch):
    sick(monkeypatch, sampler_learner_kl=0.5)
    run(recipe_file, tmp_path / "run", *BRIEF, 'stage.1.alarms.mismatch="off"')
    assert "mismatch" not in log(tmp_path / "run")


def test_a_loss_that_is_no_number_leaves_the_weights_and_ends_the_run_unless_it_is_only_to_be_told(
    run, recipe_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(grpo, "group_advantages", lambda values, *_, **__: [float("nan")] + [1.0] * (len(values) - 1))
    with pytest.raises(SleuthError, match="stopped at step 1 by not_finite; the last checkpoint is none yet"):
        run(recipe_file, tmp_path / "stopped", *BRIEF)
    last = run(recipe_file, tmp_path / "told", *BRIEF, 'stage.1.alarms.not_finite="warn"')
    assert all(row["loss"] is None for row in figures(tmp_path / "told"))
    assert load_state(last)["policy"]["optimiser"]["steps"] == 0


def test_going_back_forgets_what_came_after_the_best_checkpoint_and_draws_anew(run, recipe_file, tmp_path):
    run(recipe_file, tmp_path / "run", "stage.1.save_every=1", "stage.1.keep=4")
    rewards = {row["step"]: row["reward_mean"] for row in figures(tmp_path / "run")}
    means = {step: sum(list(rewards.values())[:step]) / step for step in rewards}
    best = max(means, key=means.__getitem__)
    before = figures(tmp_path / "run")
    kept = (tmp_path / "run" / "recipe.toml").read_bytes()
    with pytest.raises(SleuthError, match="holds another run: name is "):
        RunFolder.open(tmp_path / "run", load_recipe(recipe_file, ['name="another"']), changed=True)
    assert (tmp_path / "run" / "recipe.toml").read_bytes() == kept
    changed = load_recipe(recipe_file, ["stage.1.save_every=1", "stage.1.keep=4", "stage.1.steps=6"])
    with RunFolder.open(tmp_path / "run", changed, changed=True) as folder:
        folder.say(stage_to_roll_back(changed, folder).roll_back())
        assert steps_saved(tmp_path / "run")[-1] == best
        run_recipe(changed, folder)
    after = figures(tmp_path / "run")
    assert [row["step"] for row in after] == [1, 2, 3, 4, 5, 6]
    assert after[:best] == before[:best]
    assert f"to step {best}, the best checkpoint of stage grpo" in log(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["rolled_back"] == [{"stage": "grpo", "left": 4, "begun_at": best}]


def test_going_back_forgets_what_was_measured_of_the_weights_that_it_leaves(run, finished, recipe_file, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished().parents[1], folder)
    rows = [row | {"reward_mean": 1.0 if row["step"] <= 2 else 0.0} for row in figures(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / CHAIN).unlink()
    before = {name: json.loads((folder / "eval" / f"{name}.json").read_text()) for name in ("base", "trained")}
    recipe = load_recipe(recipe_file)
    with RunFolder.open(folder, recipe, changed=True) as place:
        stage_to_roll_back(recipe, place).roll_back()
    assert [file.name for file in (folder / "eval").iterdir()] == ["base.json"]
    last = run(recipe_file, folder)
    trained = json.loads((folder / "eval" / "trained.json").read_text())
    assert trained["model_sha256"] == hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()
    assert trained["model_sha256"] != before["trained"]["model_sha256"]
    assert (before["base"]["after"], trained["after"]) == ([], ["grpo"])
    assert json.loads((folder / "eval" / "base.json").read_text()) == before["base"]


@pytest.mark.parametrize("damage", [b"", b'{"model": "che', b"\xff\xfe", b"[1]", b"null", b"[" * 100_000])
def test_going_back_beside_a_damaged_evaluation_sets_it_aside_in_one_line(finished, recipe_file, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(finished().parents[1], folder)
    (folder / "eval" / "base.json").write_bytes(damage)
    recipe = load_recipe(recipe_file)
    with RunFolder.open(folder, recipe, changed=True) as place:
        assert stage_to_roll_back(recipe, place).roll_back().startswith("back from step ")
    assert log(folder).count("base.json is damaged: it is now ") == 1


def test_an_evaluation_of_other_weights_is_made_again_and_one_of_the_same_is_kept(run, finished, recipe_file, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished().parents[1], folder)
    file = folder / "eval" / "trained.json"
    measured = file.read_bytes()
    run(recipe_file, folder)
    assert file.read_bytes() == measured
    file.write_text(json.dumps(json.loads(measured) | {"model_sha256": "0" * 64}))
    (folder / CHAIN).unlink()
    run(recipe_file, folder)
    assert json.loads(file.read_bytes())["model_sha256"] == json.loads(measured)["model_sha256"]
    assert "trained.json is not of the weights that" in log(folder)


def test_a_run_does_not_go_on_under_another_reward_unless_that_one_is_named(
    run, finished, recipe_file, tmp_path, monkeypatch
):
    shutil.copytree(finished("stage.1.stop_after=2").parents[1], tmp_path / "run")
    monkeypatch.setitem(SCORERS, "strict", replace(SCORERS["strict"], version=2))
    with pytest.raises(
        SleuthError, match=r"scorer_version: the checkpoint 1, the recipe 2; .*--accept-reward \w+"
    ) as caught:
        run(recipe_file, tmp_path / "run")
    named = str(caught.value).rsplit(" ", 1)[1]
    recipe = load_recipe(recipe_file)
    for wrong in ("0123456789ab", None):
        with RunFolder.open(tmp_path / "run", recipe, accepted_reward=wrong) as folder, pytest.raises(SleuthError):
            run_recipe(recipe, folder)
    with RunFolder.open(tmp_path / "run", recipe, accepted_reward=named) as folder:
        run_recipe(recipe, folder)
    run(recipe_file, tmp_path / "run")  # from now on it is the run's own


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

    for owner, name in ((LocalEngine, "sleep"), (LocalEngine, "publish"), (Policy, "update")):
        recorded(owner, name)
    recorded(torch.cuda, "empty_cache")
    run(recipe_file, tmp_path / "run", "stage.1.stop_after=2", "seed=5")
    rest = ["sleep", "empty_cache"]  # of the engine's own cache
    without = [*rest, "empty_cache", "empty_cache", "publish"]  # the first step has nothing to learn
    step = [*rest, "empty_cache", "update", "empty_cache", "publish"]
    begun = ["empty_cache", "empty_cache", "publish"]  # between stages, and before servers would wake
    assert events == [*rest, *begun, *without, *step, "empty_cache", *rest, "empty_cache"]


def test_a_run_with_cpu_offload_is_the_run_without_and_continues_as_it(run, finished, recipe_file, tmp_path):
    """In one process; on a CPU it copies from host to host."""
    whole = finished()
    run(recipe_file, tmp_path / "run", "stage.1.stop_after=2", "stage.1.cpu_offload=true")
    last = run(recipe_file, tmp_path / "run")
    assert (last / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_stage_that_begins_under_another_protocol_says_what_differs(run, finished, recipe_file, tmp_path):
    first = finished("stage.1.stop_after=2")
    run(recipe_file, tmp_path / "second", *BRIEF, f'model="{first}"', "stage.1.stop_after=1", "stage.1.env.top_k=2")
    said = "another protocol: dialect.top_k: the first checkpoint 3, this stage 2"
    assert said in log(tmp_path / "second")
    run(recipe_file, tmp_path / "third", *BRIEF[:3], BRIEF[-1], f'model="{first}"', "stage.1.stop_after=1")
    assert "another protocol" not in log(tmp_path / "third")


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
    ended = CliRunner().invoke(app, ["train", str(recipe_file), "--run", str(tmp_path / "run"), *flags])
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_an_evaluation_that_finds_no_room_waits_for_it(run, recipe_file, tmp_path, monkeypatch):
    write, refused = eval_file.write_text, []

    def full(file: Path, text: str) -> None:
        if file.stem == "base" and not refused:
            refused.append(file)
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        write(file, text)

    monkeypatch.setattr(eval_file, "write_text", full)
    run(recipe_file, tmp_path / "run", *BRIEF[1:], "stage.1.steps=1")
    assert refused
    assert "no room on the disk for the evaluation base: it waits" in log(tmp_path / "run")
    assert len(json.loads((tmp_path / "run" / "eval" / "base.json").read_text())["records"]) == 4
