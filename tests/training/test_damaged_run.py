"""A run or a checkpoint that was damaged, swapped or added to between two sessions: repaired with a line, refused in a
line, or without effect; nothing is silent, and nothing waits for a pipe."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damages import IN_PLACE, damage, no_longer_than, remove
from run_files import manifest, weights
from small_stages import BRIEF, SECOND_STAGE
from verb import sleuth

from sleuth.host.checksums import SUMS, write_checksums
from sleuth.learn.models import load_model
from sleuth.plan.model_files import load_files
from sleuth.recipe import load_recipe
from sleuth.runs.chain import CHAIN
from sleuth.runs.manifest import SAVED_AS
from sleuth.runs.run_folder import RunFolder
from sleuth.training.stage_context import Saved, StageContext, last_saved
from sleuth.types import SleuthError

SECONDS = 20
"""Longer than reading a checkpoint of a tiny model takes anywhere, shorter than for ever."""


@pytest.fixture
def run(run) -> Callable[..., Path]:
    return lambda recipe, folder, *more: run(recipe, folder, *BRIEF, *more)


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A finished run of four steps with checkpoints after steps 2 and 4, without a chain: what they say is believed."""
    copy = Path(shutil.copytree(finished(*BRIEF).parents[1], tmp_path / "run"))
    (copy / CHAIN).unlink()
    return copy


@pytest.fixture
def place(folder) -> Path:
    return folder / "checkpoints" / "step-000004"


@pytest.fixture
def other(finished) -> Path:
    """The same step of a run with another seed."""
    return finished(*BRIEF, "seed=5")


def resume(checkpoint: Path) -> tuple[Saved | None, list[str]]:
    """What the stage of a checkpoint's run would resume from, and the lines that it prints."""
    run, said = checkpoint.parents[1], []
    recipe = load_recipe(run / "recipe.toml")
    with no_longer_than(SECONDS), RunFolder.open(run, recipe) as folder, folder.saying(said.append):
        return last_saved(StageContext(recipe=recipe, index=1, folder=folder, model=recipe.model)), said


def refused(call: Callable[[], object]) -> str | None:
    """The one line of a refusal."""
    try:
        with no_longer_than(SECONDS):
            call()
    except SleuthError as error:
        (line,) = str(error).splitlines()
        return line
    return None


def readers(place: Path) -> dict[str, Callable[[], object]]:
    return {
        "load_model": partial(load_model, str(place), dtype=None, device="cpu"),
        "load_files": partial(load_files, str(place)),
        "resume": partial(resume, place),
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def briefly(every: Iterable[object], *quick: object) -> list[Any]:
    """All of them, of which the test suite without its slow tests asks the quick ones."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]


# -- a file of a checkpoint --------------------------------------------------------------------------------------------

FILES = (
    *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "protocol.json", "state/state.pt", str(SAVED_AS), SUMS),
)


@pytest.mark.parametrize(
    "kind", briefly(("cut", "one bit", "zeros", "removed", "folder", *IN_PLACE), "one bit", "pipe")
)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_was_written_is_noticed(place, name, kind):
    damage(kind, place / name)
    calls, is_state, waits = readers(place), name.startswith("state/"), kind in IN_PLACE
    unlisted = (name, kind) == (SUMS, "removed")  # the way to say that a change is meant
    assert (refused(calls["load_model"]) is None) == (unlisted or (is_state and not waits))
    unread = is_state or name == "model.safetensors"
    if (name, kind) != (SUMS, "one bit"):  # which may be in the line of a file that it does not read
        assert (refused(calls["load_files"]) is None) == (unlisted or (unread and not waits))
    if waits or (kind == "folder" and name != "chat_template.jinja"):
        assert f"{place / name}: " in (refused(calls["resume"]) or "")
        return
    saved, said = resume(place)
    if unlisted:
        assert said == [f"{place} has no checksums, as those of earlier versions: damage would go unnoticed"]
        return
    assert saved is not None
    assert saved.checkpoint.name == "step-000002"
    [line] = [line for line in said if line.startswith(f"{place} is damaged (")]
    assert name == SUMS or Path(name).name in line


ADDED = (
    *("adapter_config.json", "pytorch_model.bin", "model.safetensors.index.json", "model-00001-of-00002.safetensors"),
    *("adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter", "chat_template.json"),
    *("additional_chat_templates/tool_use.jinja", "added_tokens.json", "special_tokens_map.json", "vocab.json"),
    *("merges.txt", "tokenizer.model", "tokenizer.4.0.0.json", "preprocessor_config.json", "state/more.pt"),
)


@pytest.mark.parametrize("kind", briefly(("file", *IN_PLACE), "file"))
@pytest.mark.parametrize("name", ADDED)
def test_a_file_that_was_added_and_would_be_loaded_is_refused(place, name, kind):
    damage(kind, place / name)
    for verb, call in readers(place).items():
        unread = name.startswith("state/") if verb != "resume" else False
        unread |= verb == "load_files" and name.endswith("safetensors")
        if kind != "file" or not unread:
            assert name in (refused(call) or ""), verb


@pytest.mark.parametrize("name", ["README.md", "notes.md", "notes.txt", ".env", ".git/config", "run.log", "state.zip"])
def test_notes_beside_a_checkpoint_are_nobodys_business(place, name):
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("seen")
    assert_is_whole(place)


def assert_is_whole(place: Path) -> None:
    load_model(str(place), dtype=None, device="cpu")
    saved, said = resume(place)
    assert saved is not None
    assert (saved.checkpoint, said) == (place, [])


# -- a whole checkpoint ------------------------------------------------------------------------------------------------

Damage = Callable[[Path, Path], object]
"""Acts on a checkpoint; the second folder is the same step of another run."""


def copy_from(pattern: str) -> Damage:
    def act(place: Path, other: Path) -> None:
        for file in other.glob(pattern):
            shutil.copy(file, place / file.relative_to(other))

    return act


def swap(place: Path, other: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(other, place)


def keep_lines(keep: Callable[[list[str]], list[str]]) -> Damage:
    return lambda place, _: (place / SUMS).write_text("".join(keep((place / SUMS).read_text().splitlines(True))))


def without(part: str) -> Damage:
    return keep_lines(lambda lines: [line for line in lines if part not in line])


def linked(place: Path, other: Path) -> None:
    shutil.rmtree(place)
    place.symlink_to(other)


def named(place: Path, **changed: object) -> None:
    """Names another run or step, with a list of checksums that holds."""
    was = json.loads((place / SAVED_AS).read_text())
    (place / SAVED_AS).write_text(json.dumps(was | changed))
    write_checksums(place, but=("README.md",))


def earlier(place: Path) -> Path:
    return place.with_name("step-000002")


WHOLE: dict[str, tuple[Damage, str | None]] = {
    "swapped": (swap, "at step 4 of another run"),
    "linked to another run": (linked, "at step 4 of another run"),
    "renamed down": (lambda place, _: place.rename(place.with_name("step-000003")), "at step 4 of this run"),
    "renamed up": (lambda place, _: place.rename(place.with_name("step-000007")), "at step 4 of this run"),
    "an earlier one renamed": (lambda place, _: (remove(place), earlier(place).rename(place)), "at step 2 of this run"),
    "an earlier one linked": (lambda place, _: linked(place, earlier(place)), "at step 2 of this run"),
    "an earlier one swapped": (lambda place, other: swap(earlier(place), earlier(other)), "at step 2 of another run"),
    "another run named": (lambda place, _: named(place, run="0123"), "of another run"),
    "a pipe": (lambda place, _: damage("pipe", place), "is a pipe, not a file"),
    "a file": (lambda place, _: damage("file", place), "is a file in place of a checkpoint"),
    "a link to itself": (lambda place, _: damage("loop", place), "is a link that leads to no file"),
    "list of one line": (keep_lines(lambda lines: lines[:1]), "and 7 more would be loaded"),
    "list without weights": (without("model.safetensors"), "model.safetensors would be loaded, but not as written"),
    "list without state": (without("state/"), "state/run.json and 1 more would be loaded"),
    "list of another run": (copy_from(SUMS), None),
    "weights of another run": (copy_from("model.safetensors"), None),
    "state of another run": (copy_from("state/*"), None),
    "empty list": (keep_lines(lambda lines: []), None),
    "no state": (lambda place, _: remove(place / "state"), None),
}
"""What is done to a checkpoint, and the line of the refusal; None where the run continues from the one before, with a
line."""


@pytest.mark.parametrize("what", WHOLE)
def test_a_checkpoint_of_elsewhere_is_not_resumed_from_in_silence(place, other, what):
    act, line = WHOLE[what]
    act(place, other)
    before = names(place.parent)
    if line is not None:
        assert line in (refused(partial(resume, place)) or "")
        assert names(place.parent) == before, "a refusal changes nothing"
        return
    saved, said = resume(place)
    assert saved is not None
    assert saved.checkpoint.name == "step-000002"
    assert any(str(place) in line and "continuing from step-000002" in line for line in said)


@pytest.mark.parametrize("verb", ["eval", "serve", "check", "export", "plan"])
@pytest.mark.parametrize("what", ["added", "cut list", "one bit", "pipe"])
def test_verbs_refuse_such_a_model_in_one_line(place, world, recipe_file, tmp_path, verb, what):
    if what == "added":
        (place / "adapter_config.json").write_text("{}")
    elif what == "cut list":
        keep_lines(lambda lines: lines[:1])(place, place)
    else:
        damage(what, place / ("protocol.json" if what == "pipe" else "model.safetensors"))
    arguments: list[object] = {
        "eval": ["eval", place, "--questions", world / "qa_test.jsonl", "--index", world / "index"],
        "check": ["check", "model", place],
        "plan": ["plan", recipe_file, "--set", f"model={place}"],
        "export": ["export", place, "--gguf", "--out", tmp_path / "model.gguf"],
        "serve": ["serve", place, "--port", "0"],
    }[verb]
    with no_longer_than(SECONDS):
        result = sleuth(*arguments)
    if (verb == "plan" and what != "pipe") or (verb == "check" and what == "one bit"):
        return  # reads no weights
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert str(place) in result.stderr


# -- a run -------------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_computed_again_from_the_one_before(run, recipe_file, folder, place, capsys):
    whole = weights(place)
    damage("one bit", place / "model.safetensors")
    assert weights(run(recipe_file, folder)) == whole
    said = capsys.readouterr().err
    assert f"{place} is damaged (" in said
    assert "it is now step-000004.damaged; continuing from step-000002" in said
    assert names(folder / "checkpoints") == ["step-000002", "step-000004"]
    run(recipe_file, folder)
    assert "damaged" not in capsys.readouterr().err


def test_without_an_intact_checkpoint_a_run_ends_in_one_line_and_keeps_what_is_there(run, recipe_file, folder, place):
    for checkpoint in (earlier(place), place):
        damage("one bit", checkpoint / "model.safetensors")
    back = sleuth("train", recipe_file, "--run", folder, "--roll-back")
    assert back.exit_code == 2
    assert "is not what was written" in back.stderr
    line = refused(partial(run, recipe_file, folder)) or ""
    assert "step-000004 is damaged " in line
    assert "no intact checkpoint before it" in line
    assert names(folder / "checkpoints") == ["step-000002", "step-000004"]


def test_repairing_a_stage_keeps_the_checkpoints_of_the_stages_after_it(run, recipe_file, tmp_path, capsys):
    with recipe_file.open("a") as file:
        file.write(SECOND_STAGE)
    last = run(recipe_file, tmp_path / "run")
    before, saved = weights(last), (last / "model.safetensors").stat().st_mtime_ns
    damage("one bit", last.with_name("step-000004") / "model.safetensors")
    assert run(recipe_file, tmp_path / "run") == last
    assert (weights(last), (last / "model.safetensors").stat().st_mtime_ns) == (before, saved)
    assert "continuing from step-000002" in capsys.readouterr().err


NO_ROWS = "metrics.jsonl:1: is not a JSON object with stage and step"
NO_MANIFEST = "manifest.json: is damaged: restore it, or remove it"
STATE = "checkpoints/step-000004/state/state.pt"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        *(
            ("metrics.jsonl", row, NO_ROWS)
            for row in (b"{}\n", b"[1]\n{}\n", b'{"stage": 1, "step": 2}\n', b"\xff\n{}\n")
        ),
        *(("manifest.json", text, NO_MANIFEST) for text in (b"", b"{}", b"[]", b"{", b'{"versions": 1, "hashes": {}}')),
        *((STATE, state, "state.pt: ") for state in (b"", b"PK")),
    ],
)
def test_a_file_without_checksums_that_cannot_be_read_is_one_line(run, recipe_file, folder, place, name, content, line):
    (place / SUMS).unlink()
    (folder / name).write_bytes(content)
    assert line in (refused(partial(run, recipe_file, folder)) or "")


def test_lost_rows_rollouts_and_a_lost_manifest_are_reported_and_the_rest_is_kept(
    run, finished, recipe_file, tmp_path, capsys
):
    folder = Path(shutil.copytree(finished(*BRIEF, "stage.1.stop_after=2").parents[1], tmp_path / "run"))
    (folder / CHAIN).unlink()
    (folder / "metrics.jsonl").unlink()
    cut = folder / "rollouts" / "step-000001.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    (folder / "rollouts" / "step-000002.parquet").unlink()
    assert weights(run(recipe_file, folder)) == weights(finished(*BRIEF))
    said = capsys.readouterr().err
    assert "metrics.jsonl lacks the rows of 2 of the 2 steps of stage grpo" in said
    assert "1 of the files of 2 steps are missing, such as step-000002.parquet" in said
    assert "1 of the files of 2 steps are damaged, such as step-000001.parquet" in said
    assert len(cut.read_bytes()) == 100
    (folder / "manifest.json").unlink()
    run(recipe_file, folder)
    assert "manifest.json is missing" in capsys.readouterr().err


def test_what_decides_the_bytes_is_compared_with_how_the_run_began(run, recipe_file, folder, capsys, monkeypatch):
    from sleuth.cli.pipeline import run_recipe

    run(recipe_file, folder)
    assert "the run began with" not in capsys.readouterr().err
    before = manifest(folder)
    assert before["machine"].keys() >= {"processor", "instructions", "gpus", "MKL_CBWR"}
    before["machine"]["processor"] = "Abacus 3000"
    before["versions"]["numba"] = "0.1"
    (folder / "manifest.json").write_text(json.dumps(before))
    (folder / CHAIN).unlink()
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    run(recipe_file, folder)
    said = capsys.readouterr().err
    for change in ("numba 0.1 and is ", "processor Abacus 3000 and is ", "MKL_CBWR none and is AVX2 now"):
        assert change in said
    recipe = load_recipe(recipe_file, BRIEF)
    with RunFolder.open(folder, recipe) as place, pytest.raises(SleuthError, match="--exact: the run began with numba"):
        run_recipe(recipe, place, exact=True)


def copy_as(checkpoint: Path, step: int) -> None:
    """A copy of a checkpoint that says that it was saved at this step."""
    other = Path(shutil.copytree(checkpoint, checkpoint.with_name(f"step-{step:06d}")))
    named(other, step=step)


def test_what_a_kill_between_saving_and_removing_left_is_removed_by_the_next_session(run, recipe_file, folder, place):
    expected = names(folder / "checkpoints")
    for step in (1, 3):
        copy_as(place, step)
    shutil.copytree(place, place.with_name("step-000002.removed.partial"))
    run(recipe_file, folder)
    assert names(folder / "checkpoints") == expected


def test_no_checkpoint_is_removed_by_a_session_that_lacks_the_rows_which_choose_the_best(
    run, recipe_file, folder, place
):
    copy_as(place, 3)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[1:]))
    run(recipe_file, folder)
    assert place.with_name("step-000003").exists()


# -- which run it is ---------------------------------------------------------------------------------------------------


def test_a_run_of_before_is_continued_with_one_line(folder):
    contents = manifest(folder)
    del contents["run"]
    (folder / "manifest.json").write_text(json.dumps(contents))
    for checkpoint in (folder / "checkpoints").iterdir():
        (checkpoint / SAVED_AS).unlink()
        write_checksums(checkpoint, but=("README.md",))
    result = sleuth("train", folder / "recipe.toml", "--run", folder)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "unnoticed" in line or "noticed from now on" in line]
    assert lines == [
        f"{folder} has no chain.jsonl: its files are accepted as they are, and changes noticed from now on"
    ]
    assert manifest(folder)["run"]


def test_a_run_whose_manifest_was_lost_is_the_run_of_its_checkpoints(folder, place):
    run = manifest(folder)["run"]
    (folder / "manifest.json").unlink()
    saved, _ = resume(place)
    assert saved is not None
    assert (saved.checkpoint, manifest(folder)["run"]) == (place, run)


@pytest.mark.parametrize("umask", briefly((0o022, 0o002, 0o077), 0o022))
def test_the_umask_decides_who_reads_what_is_written(run, recipe_file, tmp_path, umask):
    before = os.umask(umask)
    try:
        run(recipe_file, tmp_path / "run")
    finally:
        os.umask(before)
    modes = {file: file.stat().st_mode & 0o777 for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert set(modes.values()) == {0o666 & ~umask}, {file: oct(mode) for file, mode in modes.items()}
