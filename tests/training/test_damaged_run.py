"""A run whose files were damaged between two sessions: repaired aloud, refused in a line, or without effect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.host.checksums import SUMS, write_checksums
from sleuth.recipe import load_recipe
from sleuth.runs.chain import CHAIN
from sleuth.runs.checkpoints import step_of
from sleuth.runs.manifest import SAVED_AS
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

Run = Callable[..., Path]
SECOND_STAGE = """
[[stage]]
kind = "supervised"
name = "after"
steps = 2
rows_per_step = 2
learning_rate = 1e-4
data = { kind = "world_text", people = 200, mix = { phrasing = 1.0 } }
"""


BRIEF = (
    "stage.0.data.limit=2",
    "stage.1.prompts_per_step=2",
    "stage.1.samples_per_prompt=4",
    "stage.1.env.turn_tokens=12",
    "stage.2.data.limit=2",
)
"""Where it is all the same how much is played."""


@pytest.fixture
def run(run) -> Run:
    return lambda recipe, folder, *more: run(recipe, folder, *BRIEF, *more)


@pytest.fixture
def finished(finished) -> Run:
    return partial(finished, *BRIEF)


def flip(file: Path, count: int = 64) -> None:
    """Changes some bytes in the middle."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + count] = bytes(byte ^ 1 for byte in content[middle : middle + count])
    file.write_bytes(content)


def weights(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A finished run of four steps with checkpoints after steps 2 and 4, without a chain, as of earlier versions."""
    copy = Path(shutil.copytree(finished().parents[1], tmp_path / "run"))
    (copy / CHAIN).unlink()
    return copy


@pytest.mark.parametrize("name", ["model.safetensors", "state/state.pt", SUMS])
def test_a_damaged_checkpoint_is_computed_again_from_the_one_before(run, finished, recipe_file, folder, capsys, name):
    whole = finished()
    last = folder / "checkpoints" / "step-000004"
    flip(last / name, 1 if name == SUMS else 64)
    assert weights(run(recipe_file, folder)) == weights(whole)
    said = capsys.readouterr().err
    assert f"{last} is damaged (" in said
    assert "it is now step-000004.damaged; continuing from step-000002" in said
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    run(recipe_file, folder)
    assert "damaged" not in capsys.readouterr().err


def test_a_lost_state_is_missed(run, finished, recipe_file, folder, capsys):
    (folder / "checkpoints" / "step-000004" / "state" / "state.pt").unlink()
    assert weights(run(recipe_file, folder)) == weights(finished())
    assert "step-000004 is damaged (state/state.pt is missing)" in capsys.readouterr().err


def test_without_an_intact_checkpoint_a_run_ends_in_one_line_and_keeps_what_is_there(run, recipe_file, folder):
    for step in ("step-000002", "step-000004"):
        flip(folder / "checkpoints" / step / "model.safetensors")
    with pytest.raises(SleuthError, match=r"step-000004 is damaged .* no intact checkpoint before it") as refused:
        run(recipe_file, folder)
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000002", "step-000004"]


def test_checkpoints_of_earlier_versions_are_continued_with_one_line(run, recipe_file, folder, capsys):
    (folder / "checkpoints" / "step-000004" / SUMS).unlink()
    run(recipe_file, folder)
    assert capsys.readouterr().err.count("step-000004 has no checksums") == 1


def test_repairing_a_stage_keeps_the_checkpoints_of_the_stages_after_it(run, recipe_file, tmp_path, capsys):
    with recipe_file.open("a") as file:
        file.write(SECOND_STAGE)
    last = run(recipe_file, tmp_path / "run")
    before = weights(last)
    written = (last / "model.safetensors").stat().st_mtime_ns
    flip(last.with_name("step-000004") / "model.safetensors")
    assert run(recipe_file, tmp_path / "run") == last
    assert (last / "model.safetensors").stat().st_mtime_ns == written
    assert weights(last) == before
    assert "continuing from step-000002" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("eval",), ("serve", "--port", "0")])
def test_a_damaged_model_is_neither_evaluated_nor_served(folder, world, command):
    last = folder / "checkpoints" / "step-000004"
    flip(last / "model.safetensors")
    more = ("--questions", world / "qa_test.jsonl", "--index", world / "index") if command[0] == "eval" else ()
    result = sleuth(command[0], last, *command[1:], *more)
    assert result.exit_code == 2
    assert "model.safetensors is not what was written" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_run_is_not_rolled_back_to_a_damaged_checkpoint(recipe_file, folder):
    for step in ("step-000002", "step-000004"):
        flip(folder / "checkpoints" / step / "model.safetensors")
    result = sleuth("train", recipe_file, "--run", folder, "--roll-back")
    assert result.exit_code == 2
    assert "is not what was written" in result.stderr
    assert len(list((folder / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("content", [b"{}\n", b"[1]\n", b"[1]\n{}\n", b'{"stage": 1, "step": 2}\n', b"\xff\xfe\n{}\n"])
def test_rows_that_are_none_are_named_by_their_line(run, recipe_file, folder, content):
    (folder / "metrics.jsonl").write_bytes(content)
    with pytest.raises(SleuthError, match=r"metrics\.jsonl:1: is not a JSON object with stage and step"):
        run(recipe_file, folder)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", '{"versions": {}}', "null", '{"versions": 1, "hashes": {}}'])
def test_a_damaged_manifest_is_refused_in_one_line(run, recipe_file, folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(SleuthError, match=r"manifest\.json: is damaged: restore it, or remove it"):
        run(recipe_file, folder)


def test_lost_rows_rollouts_and_a_lost_manifest_are_reported_and_the_rest_is_kept(
    run, finished, recipe_file, tmp_path, capsys
):
    folder = Path(shutil.copytree(finished("stage.1.stop_after=2").parents[1], tmp_path / "run"))
    (folder / CHAIN).unlink()
    (folder / "metrics.jsonl").unlink()
    cut = folder / "rollouts" / "step-000001.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    (folder / "rollouts" / "step-000002.parquet").unlink()
    assert weights(run(recipe_file, folder)) == weights(finished())
    said = capsys.readouterr().err
    assert "metrics.jsonl lacks the rows of 2 of the 2 steps of stage grpo" in said
    assert "1 of the files of 2 steps are missing, such as step-000002.parquet" in said
    assert "1 of the files of 2 steps are damaged, such as step-000001.parquet" in said
    assert len(cut.read_bytes()) == 100
    (folder / "manifest.json").unlink()
    run(recipe_file, folder)
    assert "manifest.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", '{"name": "base", "em"'])
def test_a_damaged_evaluation_is_measured_again(run, recipe_file, folder, capsys, content):
    whole = json.loads((folder / "eval" / "base.json").read_text())
    (folder / "eval" / "base.json").write_text(content)
    run(recipe_file, folder)
    assert "base.json is damaged: it is now base.json.damaged, and is measured again" in capsys.readouterr().err
    assert json.loads((folder / "eval" / "base.json").read_text())["records"] == whole["records"]


@pytest.mark.parametrize("content", [b"", b"PK"])
def test_a_state_without_checksums_that_cannot_be_read_is_one_line(run, recipe_file, folder, content):
    last = folder / "checkpoints" / "step-000004"
    (last / SUMS).unlink()
    (last / "state" / "state.pt").write_bytes(content)
    with pytest.raises(SleuthError, match=r"state\.pt: ") as refused:
        run(recipe_file, folder)
    assert "\n" not in str(refused.value)


def test_what_decides_the_bytes_is_compared_with_how_the_run_began(run, recipe_file, folder, capsys, monkeypatch):
    from sleuth.cli.pipeline import run_recipe

    run(recipe_file, folder)
    assert "the run began with" not in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["machine"].keys() >= {"processor", "instructions", "gpus", "MKL_CBWR"}
    manifest["machine"]["processor"] = "Abacus 3000"
    manifest["versions"]["numba"] = "0.1"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / CHAIN).unlink()
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    run(recipe_file, folder)
    said = capsys.readouterr().err
    for change in ("numba 0.1 and is ", "processor Abacus 3000 and is ", "MKL_CBWR none and is AVX2 now"):
        assert change in said
    recipe = load_recipe(recipe_file, BRIEF)
    with RunFolder.open(folder, recipe) as place, pytest.raises(SleuthError, match="--exact: the run began with numba"):
        run_recipe(recipe, place, exact=True)


def copy_as(checkpoint: Path, other: Path) -> None:
    """A copy of a checkpoint that says that it was saved at the step of its own name."""
    shutil.copytree(checkpoint, other)
    named = json.loads((other / SAVED_AS).read_text()) | {"step": step_of(other)}
    (other / SAVED_AS).write_text(json.dumps(named))
    write_checksums(other, but=("README.md",))


def test_what_a_kill_between_saving_and_removing_left_is_removed_by_the_next_session(run, recipe_file, folder):
    checkpoints = folder / "checkpoints"
    expected = sorted(place.name for place in checkpoints.iterdir())
    for left in ("step-000001", "step-000003"):
        copy_as(checkpoints / "step-000004", checkpoints / left)
    shutil.copytree(checkpoints / "step-000004", checkpoints / "step-000002.removed.partial")
    run(recipe_file, folder)
    assert sorted(place.name for place in checkpoints.iterdir()) == expected


def test_no_checkpoint_is_removed_by_a_session_that_lacks_the_rows_which_choose_the_best(run, recipe_file, folder):
    checkpoints = folder / "checkpoints"
    copy_as(checkpoints / "step-000004", checkpoints / "step-000003")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[1:]))
    run(recipe_file, folder)
    assert (checkpoints / "step-000003").exists()
