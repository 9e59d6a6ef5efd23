"""`sleuth sweep`: what is trained, what is taken over, and what the table says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import verb
from typer.testing import Result
from verb import printed_json, refusal

from sleuth.cli.pipeline import run_recipe
from sleuth.evaluation.intervals import paired_bootstrap
from sleuth.recipe.sweep import load_sweep
from sleuth.runs.checkpoints import reuse_checkpoints
from sleuth.runs.run_folder import RunFolder, RunLock
from sleuth.training.sft import SFTTrainer

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
STAGES = """
name = "stages"
model = "{model}"

[[stage]]
kind = "supervised"
name = "shown"
steps = 2
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "thoughts", texts = "{world}/text_train.jsonl", limit = 20 }}

[[stage]]
kind = "grpo"
name = "gain"
steps = 2
prompts_per_step = 2
samples_per_prompt = 3
learning_rate = 1e-3
context = 400
data = {{ kind = "places", texts = "{world}/text_train.jsonl", part = "rl", suffix_tokens = 8, limit = 20 }}
env = {{ kind = "thought", thought_tokens = 8 }}
reward = [{{ kind = "gain" }}]
loss = {{ setting = "dr_grpo", constant = 8, old_logprobs = "learner" }}

[[stage]]
kind = "probe"
name = "thoughts"
samples = 2
data = {{ kind = "places", texts = "{world}/text_test.jsonl", suffix_tokens = 8, limit = 5 }}
env = {{ kind = "thought", thought_tokens = 8 }}
"""
ARMS = """
name = "arms"
model = "{model}"
seeds = [5, 6]

[table]
evaluation = "thoughts"
figures = ["gain_sampled", "gained_share"]
against = "shown"

[[arm]]
name = "shown"
stages = ["stages.toml:shown", "stages.toml:thoughts"]

[[arm]]
name = "paid"
stages = ["stages.toml:shown", "stages.toml:gain", "stages.toml:thoughts"]
"""


@pytest.fixture
def arms_file(world: Path, tmp_path: Path) -> Path:
    (tmp_path / "stages.toml").write_text(STAGES.format(model=BASE, world=world))
    file = tmp_path / "two_arms.toml"
    file.write_text(ARMS.format(model=BASE))
    return file


def sleuth(*arguments: object) -> Result:
    return verb.sleuth("sweep", *arguments)


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def evaluation(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval" / "thoughts.json").read_text())


def test_shared_stages_are_trained_once_and_each_arm_equals_its_run_alone(arms_file: Path, tmp_path: Path) -> None:
    done = sleuth(arms_file, "--run", tmp_path / "runs", "--seed", 5)
    assert done.exit_code == 0, done.output
    shown, paid = (tmp_path / "runs" / "seed-5" / name for name in ("shown", "paid"))
    assert "shown: same recipe and seed as in" in (paid / "log.txt").read_text()
    kept = "checkpoints/step-000002/model.safetensors"
    assert (paid / kept).samefile(shown / kept)
    recipe = load_sweep(arms_file)[1]["paid"]
    with RunFolder.open(tmp_path / "alone", recipe) as folder:
        run_recipe(recipe, folder)
    assert weights(tmp_path / "alone", 4) == weights(paid, 4)
    rows = [(row["stage"], row["step"]) for row in RunFolder.look(paid).metrics.rows()]
    assert rows == [("shown", 1), ("shown", 2), ("gain", 3), ("gain", 4)]
    assert not (tmp_path / "runs" / "seed-6").exists()
    before = (paid / "checkpoints").stat().st_mtime_ns, (paid / "eval" / "thoughts.json").stat().st_mtime_ns
    assert sleuth(arms_file, "--run", tmp_path / "runs", "--seed", 5).exit_code == 0
    assert ((paid / "checkpoints").stat().st_mtime_ns, (paid / "eval" / "thoughts.json").stat().st_mtime_ns) == before


def test_a_sweep_that_is_interrupted_saves_its_step_and_goes_on_with_the_same_command(
    arms_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_arm = (arms_file, "--seed", 5, "--arm", "shown", "--run")
    with monkeypatch.context() as patch:
        learn = SFTTrainer.learn
        patch.setattr(SFTTrainer, "learn", lambda *given: os.kill(os.getpid(), signal.SIGTERM) or learn(*given))
        stopped = sleuth(*one_arm, tmp_path / "runs")
    assert stopped.exit_code == 143
    assert stopped.stderr.endswith("saved at step 1; the same command goes on\n")
    assert stopped.stdout == ""
    for place in ("runs", "whole"):
        again = sleuth(*one_arm, tmp_path / place, "--quiet")
        assert (again.exit_code, again.stderr) == (0, "")
    shown, whole = (tmp_path / place / "seed-5" / "shown" for place in ("runs", "whole"))
    assert weights(shown, 2) == weights(whole, 2)
    assert [path.name for path in (shown / "checkpoints").iterdir()] == ["step-000002"]


def test_the_table_has_levels_and_differences_over_texts_and_seeds(arms_file: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert "Not measured yet: paid." in sleuth(arms_file, "--run", root, "--seed", 5, "--arm", "shown").stdout
    one = json.loads(sleuth(arms_file, "--run", root, "--seed", 5, "--json").stdout)
    told = {name: evaluation(root / "seed-5" / name) for name in ("shown", "paid")}
    paid = one["arms"]["paid"]
    assert paid["figures"] == {key: told["paid"][key] for key in ("gain_sampled", "gained_share")}
    texts = {name: [record["figures"]["gain_sampled"] for record in told[name]["records"]] for name in told}
    apart = paired_bootstrap(texts["paid"], texts["shown"]).as_json()
    assert {key: paid["over"][key] for key in apart} == apart
    assert one["arms"]["shown"]["over"] is None
    assert {name: arm["certified"] for name, arm in one["arms"].items()} == {
        name: int(found["certificate"]["passes"]) for name, found in told.items()
    }
    rows = RunFolder.look(root / "seed-5" / "paid").metrics.rows()
    assert paid["tokens_trained"] == sum(row["tokens_trained"] for row in rows) > one["arms"]["shown"]["tokens_trained"]

    both = json.loads(sleuth(arms_file, "--run", root, "--json").stdout)["arms"]["paid"]
    assert both["seeds"] == [5, 6]

    def tell(seed: int, arm: str) -> float:
        return evaluation(root / f"seed-{seed}" / arm)["gain_sampled"]["value"]

    assert both["figures"]["gain_sampled"]["value"] == pytest.approx((tell(5, "paid") + tell(6, "paid")) / 2)
    assert both["figures"]["gained_share"]["n"] == 2  # no text has a share of its own: over seeds alone
    assert both["over"]["test"] == "student"
    pairs = [(tell(seed, "paid"), tell(seed, "shown")) for seed in (5, 6)]
    assert both["over"]["value"] == pytest.approx(sum(ours - theirs for ours, theirs in pairs) / 2)


def test_an_interrupted_reuse_of_checkpoints_continues(arms_file: Path, tmp_path: Path) -> None:
    assert sleuth(arms_file, "--run", tmp_path / "runs", "--seed", 5, "--arm", "shown").exit_code == 0
    recipe = load_sweep(arms_file)[1]["paid"]
    donor = tmp_path / "runs" / "seed-5" / "shown"
    with RunFolder.open(tmp_path / "paid", recipe) as folder:
        folder.metrics.append("shown", 1, {"loss": 0.0})  # a killed process had come so far
        reuse_checkpoints(folder, [tmp_path / "none", donor])
        reuse_checkpoints(folder, [donor])  # there is something now: it is left as it is
        assert [row["step"] for row in folder.metrics.rows()] == [1, 2]
        assert folder.metrics.rows() == RunFolder.look(donor).metrics.rows()
    with RunFolder.open(tmp_path / "other", load_sweep(arms_file, ["shown.learning_rate=2e-3"])[1]["paid"]) as folder:
        reuse_checkpoints(folder, [donor])  # which began otherwise
        assert not list(folder.checkpoints.iterdir())


def test_unknown_arms_seeds_and_keys_are_refused_before_anything_is_written(arms_file: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("--arm", "pay"), "--arm pay: no such arm; there are shown, paid"),
        (("--seed", 7), f"--seed 7: the seeds of {arms_file} are 5, 6"),
        (("--set", "gain.context=20"), f'{arms_file}: arm "paid": stage.1 (gain): '),
    ):
        assert refusal("sweep", arms_file, "--run", tmp_path / "runs", *arguments).startswith(said)
        assert not (tmp_path / "runs").exists()


def test_check_reads_what_arms_will_need_and_counts_shared_steps_once(arms_file: Path, tmp_path: Path) -> None:
    checked = verb.sleuth("check", "sweep", arms_file)
    assert checked.stdout == "ok: 2 arms with 2 seeds, 8 steps; shared steps are counted once\n"
    assert printed_json("check", "sweep", arms_file) == {"ok": True, "arms": 2, "seeds": 2, "steps": 8}
    stages = tmp_path / "stages.toml"
    stages.write_text(stages.read_text().replace("text_test.jsonl", "nothing.jsonl"))
    refused = verb.sleuth("check", "sweep", arms_file)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f'error: {arms_file}: arm "shown": stage.1.data.texts = ')


GATE = """
[[stage]]
kind = "gate"
name = "gate"
samples = 2
data = {{ kind = "places", texts = "{world}/text_test.jsonl", suffix_tokens = 8, limit = 3 }}
env = {{ kind = "thought", thought_tokens = 8, suffix_tokens = 2 }}
reward = [{{ kind = "suffix", judge = "ending" }}]
"""


def test_an_arm_that_misses_its_gate_ends_in_one_line_and_the_others_go_on(
    world: Path, arms_file: Path, tmp_path: Path
) -> None:
    stages = tmp_path / "stages.toml"
    stages.write_text(stages.read_text() + GATE.format(world=world))
    text = arms_file.read_text().replace('"stages.toml:gain"', '"stages.toml:gate", "stages.toml:gain"')
    text = text.replace('"gained_share"]', '"gate:no_signal", "gate:thought_tokens"]')
    first, second = text[text.index("[[arm]]") :].split("\n\n")  # the arm with the gate comes first
    arms_file.write_text(f"{text[: text.index('[[arm]]')]}{second}\n{first}\n")
    asked = (arms_file, "--run", tmp_path / "runs", "--seed", 5)
    done = sleuth(*asked, "--json")
    assert done.exit_code == 3
    missed = [line for line in done.stderr.splitlines() if "stopped at the gate gate" in line]
    assert len(missed) == 1
    assert "100.0% of the groups are without signal" in missed[0]
    found = json.loads(done.stdout)["arms"]
    assert found["shown"]["figures"].keys() == {"gain_sampled"}  # it has no gate
    assert found["shown"]["seeds"] == [5]
    assert (found["paid"]["seeds"], found["paid"]["certified"]) == ([], None)
    assert found["paid"]["figures"].keys() == {"gate:no_signal", "gate:thought_tokens"}
    assert found["paid"]["figures"]["gate:no_signal"]["value"] == 1
    assert found["paid"]["stopped"]["5"].startswith("gate: 100.0%")
    assert (tmp_path / "runs" / "seed-5" / "paid" / "checkpoints" / "step-000002").is_dir()
    table = sleuth(*asked).stdout
    assert "1 of 1" in table
    assert "0 of 1" in table
    refused = sleuth(*asked, "--set", 'table.figures=["gates:no_signal"]')
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "table.figures: gates:no_signal: no arm has a stage named gates; there are gain, gate, " in refused.stderr


def test_an_arm_that_fails_ends_in_one_line_and_the_others_go_on(arms_file: Path, tmp_path: Path) -> None:
    asked = (arms_file, "--run", tmp_path / "runs", "--seed", 5)
    held = [tmp_path / "runs" / "seed-5" / arm for arm in ("shown", "paid")]
    for folder in held:
        folder.mkdir(parents=True)
    shown, paid = map(RunLock, held)
    neither = sleuth(*asked)
    paid.release()
    assert neither.exit_code == 1
    [line] = neither.stdout.splitlines()
    assert line.endswith("is measured yet, so there is no table.")
    assert neither.stderr.count("error: arm ") == 2
    one = sleuth(*asked, "--json")
    shown.release()
    assert one.exit_code == 1
    assert [line for line in one.stderr.splitlines() if line.startswith("error: arm shown, seed 5: ")]
    assert json.loads(one.stdout)["arms"].keys() == {"paid"}


def test_seeds_of_fewer_steps_are_said_and_not_pooled(arms_file: Path, tmp_path: Path) -> None:
    asked = (arms_file, "--run", tmp_path / "runs", "--arm", "paid")
    assert sleuth(*asked, "--seed", 5, "--set", "gain.stop_after=1").exit_code == 0
    done = sleuth(*asked, "--seed", 6)
    assert "paid: seed 5 was trained for 3 steps, fewer than others: not in its row." in done.stdout
    again = sleuth(*asked, "--seed", 6, "--set", "gain.stop_after=1", "--json")
    assert "gain: stop_after = 1, but" in again.stderr
    assert "step-000004 has 2 steps already and stays as it is" in again.stderr
    row = json.loads(again.stdout)["arms"]["paid"]
    assert (row["seeds"], row["shorter"]) == ([6], {"5": 3})
